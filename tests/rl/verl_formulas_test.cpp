// Guards: the correction by the current policy and ReMax's advantages that depart from verl's.
// Oracle: verl 0.9.1's own functions in fp64 (tests/goldens/verl_formulas.py).
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "rl/algorithm/token_advantages.h"
#include "rl/step/update_loss.h"
#include "tests/rl/formula_config.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"

using namespace ringside;
using ringside::test::max_abs_diff;

namespace {

const nlohmann::json& of_verl() {
  static const auto json =
      nlohmann::json::parse(std::ifstream(RINGSIDE_GOLDENS "/verl_formulas.json"));
  return json;
}

at::Tensor verl_column(const nlohmann::json& values) {
  return at::tensor(values.get<std::vector<double>>(), at::kDouble);
}

// Bounds "low_high" or one upper bound.
std::pair<std::string, std::string> verl_bounds(const std::string& text) {
  const std::size_t cut = text.find('_');
  return cut == std::string::npos ? std::pair{std::string(), text}
                                  : std::pair{text.substr(0, cut), text.substr(cut + 1)};
}

// verl's lists "a,b" of criteria and thresholds as the value of correction.reject.
std::string reject_of(const nlohmann::json& golden) {
  std::stringstream names(golden.value("rollout_rs", "")),
      bounds(golden.value("rollout_rs_threshold", ""));
  std::string text, name, bound;
  while (std::getline(names, name, ',') && std::getline(bounds, bound, ',')) {
    const auto [low, high] = verl_bounds(bound);
    text += (text.empty() ? "[" : ", ") + std::string("{by: ") + name +
            (low.empty() ? "" : ", low: " + low) + ", high: " + high + "}";
  }
  return text + "]";
}

// The keys that are a case of verl's bypass_mode here.
rl::AlgorithmConfig verl_config(const nlohmann::json& golden) {
  std::vector<std::string> words{
      "algorithm.old_logprobs=rollout", "algorithm.correction.ratio_of=current",
      "algorithm.ppo_clip.dual_clip=3", "algorithm.clip_low=0.2", "algorithm.clip_high=0.28"};
  if (golden.contains("rollout_rs")) {
    words.push_back("algorithm.correction.reject=" + reject_of(golden));
  }
  if (golden.at("loss_type") == "reinforce") {
    words.push_back("algorithm.loss=reinforce");
  }
  if (golden.contains("rollout_is")) {
    const nlohmann::json& threshold = golden.at("rollout_is_threshold");
    const auto [low, high] =
        verl_bounds(threshold.is_string() ? threshold.get<std::string>() : threshold.dump());
    words.push_back(std::string("algorithm.correction.mode=") + (low.empty() ? "tis" : "icepop"));
    words.push_back("algorithm.correction.low=" + (low.empty() ? "0" : low));
    words.push_back("algorithm.correction.high=" + high);
    words.push_back("algorithm.correction.level=" + golden.at("rollout_is").get<std::string>());
  }
  return test::formula_config(words).algorithm;
}

engine::Columns entries_of_case() {
  std::vector<int64_t> samples;
  const auto lengths = of_verl().at("lengths").get<std::vector<int64_t>>();
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    samples.insert(samples.end(), lengths[i], static_cast<int64_t>(i));
  }
  const auto n = static_cast<int64_t>(samples.size());
  engine::Columns entries;
  entries.set("sample", at::tensor(samples, at::kLong));
  entries.set("rollout_logprob", verl_column(of_verl().at("rollout")));
  entries.set("old_logprob", verl_column(of_verl().at("rollout")));
  entries.set("advantage", verl_column(of_verl().at("advantage")));
  entries.set("weight", at::full({n}, 1.0 / static_cast<double>(n), at::kDouble));
  entries.set("correction", at::ones({n}, at::kDouble));
  return entries;
}

TEST_CASE("the correction by the current policy is verl's bypass_mode, loss and gradient") {
  const engine::Columns entries = entries_of_case();
  for (const nlohmann::json& golden : of_verl().at("bypass")) {
    CAPTURE(golden.at("name").get<std::string>());
    const rl::AlgorithmConfig config = verl_config(golden);
    const at::Tensor logprob = verl_column(of_verl().at("logprob")).requires_grad_();
    rl::LossContext context;
    context.num_sequences = static_cast<int64_t>(of_verl().at("lengths").size());
    rl::Figures figures;
    const at::Tensor loss = rl::policy_gradient_loss(logprob, at::zeros_like(logprob.detach()),
                                                     entries, config, context, figures);
    CHECK(loss.item<double>() == Approx(golden.at("loss").get<double>()).epsilon(1e-12));
    loss.backward();
    const at::Tensor expected = verl_column(golden.at("gradient"));
    CHECK(max_abs_diff(logprob.grad(), expected) < 1e-12);
    // Some tokens are rejected or weighed, and some are not.
    CHECK(expected.ne(0).any().item<bool>());
  }
}

TEST_CASE("remax's advantages are verl's") {
  rl::StepColumns table;
  table.begin = {0};
  rl::SampleRewards rewards;
  const auto lengths = of_verl().at("lengths").get<std::vector<int64_t>>();
  const auto of_tokens = of_verl().at("rewards").get<std::vector<double>>();
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    for (int64_t t = 0; t < lengths[i]; ++t) {
      const int64_t token = table.begin.back() + t;
      rewards.turns.push_back({static_cast<int64_t>(i), token, of_tokens[token]});
    }
    table.begin.push_back(table.begin.back() + lengths[i]);
  }
  rewards.total.assign(lengths.size(), 0.0);
  rewards.baseline = of_verl().at("baselines").get<std::vector<double>>();
  auto config = test::formula_config({"algorithm.advantage.estimator=remax"}).algorithm;
  config.advantage.gamma = 0.5;  // is not read
  const auto found = rl::step_advantages(table, rewards, 1, config, 0.0);
  const auto expected = of_verl().at("remax").get<std::vector<double>>();
  REQUIRE(found.advantage.size() == expected.size());
  for (std::size_t t = 0; t < expected.size(); ++t) {
    CHECK(found.advantage[t] == Approx(expected[t]).epsilon(1e-12));
  }
  rewards.baseline.pop_back();
  CHECK_THROWS_WITH(rl::step_advantages(table, rewards, 1, config, 0.0),
                    Catch::Contains("rewards of greedy completions for 5 samples, expected 6"));
}

}  // namespace
