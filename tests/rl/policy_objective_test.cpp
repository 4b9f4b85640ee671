// Guards: a policy loss or KL estimate that departs from its formula, in value or gradient.
// Oracles: PyTorch fp64 (tests/goldens/policy_losses.py), finite differences, closed forms.
#include "rl/step/policy_objective.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "rl/losses/covariance.h"
#include "rl/step/update_loss.h"
#include "tests/rl/fetched_figures.h"
#include "tests/rl/formula_config.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/grad_check.h"

using namespace ringside;
using ringside::test::max_abs_diff;

namespace {

const nlohmann::json& goldens() {
  static const auto json =
      nlohmann::json::parse(std::ifstream(RINGSIDE_GOLDENS "/policy_losses.json"));
  return json;
}

at::Tensor column(const nlohmann::json& values) {
  return at::tensor(values.get<std::vector<double>>(), at::kDouble);
}

// The algorithm of a case, through the words of a recipe.
rl::AlgorithmConfig config_of(const nlohmann::json& keys) {
  std::vector<std::string> words;
  for (const auto& [key, value] : keys.items()) {
    words.push_back("algorithm." + key + "=" +
                    (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return test::formula_config(words).algorithm;
}

struct Tokens {
  at::Tensor logprob = column(goldens()["logprob"]).requires_grad_();
  at::Tensor old = column(goldens()["old"]);
  at::Tensor reference = column(goldens()["reference"]);
  at::Tensor advantage = column(goldens()["advantage"]);
};

const at::Tensor& token_weights() {
  static const at::Tensor weights =
      at::linspace(0.5, 1.5, column(goldens()["logprob"]).size(0), at::kDouble);
  return weights;
}

// The sequence that each token belongs to.
at::Tensor samples() {
  std::vector<int64_t> ids;
  for (std::size_t i = 0; i < goldens()["lengths"].size(); ++i) {
    ids.insert(ids.end(), goldens()["lengths"][i].get<std::size_t>(), static_cast<int64_t>(i));
  }
  return at::tensor(ids, at::kLong);
}

rl::SequenceMeans sequences() {
  return {samples(), static_cast<int64_t>(goldens()["lengths"].size()), nullptr};
}

at::Tensor objective(const Tokens& tokens, const rl::AlgorithmConfig& config) {
  const rl::PolicyTerms terms{tokens.logprob, tokens.old, tokens.advantage};
  return rl::policy_objective(terms, rl::policy_log_ratio(terms, config, sequences()), config,
                              sequences());
}

at::Tensor kl(const Tokens& tokens, const rl::AlgorithmConfig& config) {
  const rl::PolicyTerms terms{tokens.logprob, tokens.old, tokens.advantage};
  return rl::kl_estimate(tokens.logprob, tokens.reference,
                         rl::policy_log_ratio(terms, config, sequences()), config, sequences());
}

// The gradient is that of a weighted sum.
void check_golden(const at::Tensor& values, const at::Tensor& weights, const Tokens& tokens,
                  const nlohmann::json& golden) {
  CHECK(max_abs_diff(values.detach(), column(golden["value"])) < 1e-12);
  (values * weights).sum().backward();
  CHECK(max_abs_diff(tokens.logprob.grad(), column(golden["gradient"])) < 1e-12);
}

}  // namespace

TEST_CASE("every policy loss equals its transcription in PyTorch, value and gradient") {
  for (const auto& golden : goldens()["losses"]) {
    CAPTURE(golden["name"].get<std::string>());
    const Tokens tokens;
    check_golden(objective(tokens, config_of(golden["keys"])), token_weights(), tokens, golden);
  }
}

TEST_CASE("every loss of the table has a transcription in PyTorch") {
  std::set<std::string> judged;
  for (const char* kind : {"losses", "covariance_losses", "sequence_losses"}) {
    for (const auto& golden : goldens()[kind]) {
      judged.insert(config_of(golden["keys"]).loss);
    }
  }
  for (const rl::PolicyLoss* loss : rl::policy_losses()) {
    CAPTURE(loss->name);
    CHECK(judged.contains(std::string(loss->name)));
  }
}

TEST_CASE("losses that choose tokens by covariance choose and compute what PyTorch does") {
  for (const auto& golden : goldens()["covariance_losses"]) {
    CAPTURE(golden["keys"].dump());
    const Tokens tokens;
    const auto old = goldens()["old"].get<std::vector<double>>();
    const auto advantage = goldens()["advantage"].get<std::vector<double>>();
    const rl::ChoicePart all{advantage, old, 0, 1};
    const auto config = config_of(golden["keys"]);
    CHECK(max_abs_diff(at::tensor(rl::token_covariances(all), at::kDouble),
                       column(goldens()["covariance"])) < 1e-12);
    const auto chosen = rl::policy_loss(config.loss).choose(all, rl::loss_options(config));
    CHECK(chosen == golden["chosen"].get<std::vector<double>>());
    const rl::PolicyTerms terms{tokens.logprob, tokens.old, tokens.advantage,
                                at::tensor(chosen, at::kDouble)};
    const auto log_ratio = rl::policy_log_ratio(terms, config, sequences());
    check_golden(rl::policy_objective(terms, log_ratio, config, sequences()), token_weights(),
                 tokens, golden);
  }
}

TEST_CASE("ratios of whole sequences in token form have the sequence form's value and gradient") {
  for (const auto& golden : goldens()["sequence_losses"]) {
    CAPTURE(golden["name"].get<std::string>());
    Tokens tokens;
    tokens.advantage = column(goldens()["sequence_advantage"]);
    check_golden(objective(tokens, config_of(golden["keys"])), column(goldens()["sequence_weight"]),
                 tokens, golden);
  }
  const Tokens tokens;
  check_golden(
      kl(tokens, config_of({{"importance_level", "sequence"}, {"kl_estimator", "k3_unbiased"}})),
      column(goldens()["sequence_weight"]), tokens, goldens()["sequence_kl"]);
}

TEST_CASE("every KL estimate equals its transcription in PyTorch, value and gradient") {
  CHECK(goldens()["kl"].size() == rl::EnumNames<rl::KlEstimator>::kNames.size());
  for (const auto& golden : goldens()["kl"]) {
    CAPTURE(golden["name"].get<std::string>());
    const Tokens tokens;
    check_golden(kl(tokens, config_of({{"kl_estimator", golden["name"]}})), token_weights(), tokens,
                 golden);
  }
}

TEST_CASE("a bounded KL estimate has PyTorch's value and gradient, none of its own beyond") {
  CHECK(goldens()["bounded_kl"].size() == 27);
  for (const auto& golden : goldens()["bounded_kl"]) {
    CAPTURE(golden["keys"].dump());
    const Tokens tokens;
    check_golden(kl(tokens, config_of(golden["keys"])), token_weights(), tokens, golden);
  }
}

TEST_CASE("a bounded k3 of a log-ratio that would overflow is finite and has no gradient") {
  const double d = GENERATE(-900.0, -2.7, 30.0);
  const at::Tensor logprob = at::full({1}, d, at::kDouble).requires_grad_();
  const at::Tensor reference = at::zeros({1}, at::kDouble);
  const auto config = config_of({{"k3_bound", 10.0}});
  const rl::SequenceMeans alone(at::zeros({1}, at::kLong), 1, nullptr);
  const at::Tensor estimate = rl::kl_estimate(logprob, reference, logprob, config, alone);
  CHECK(estimate.item<double>() == 10.0);
  estimate.sum().backward();
  CHECK(logprob.grad().item<double>() == 0.0);
}

TEST_CASE(
    "correction, KL, entropy bonus and off-policy sequence mask come together as in PyTorch") {
  CHECK(goldens()["whole"].size() == 5);
  for (const auto& golden : goldens()["whole"]) {
    const Tokens tokens;
    const at::Tensor entropy = column(goldens()["entropy"]).requires_grad_();
    engine::Columns entries;
    entries.set("sample", samples());
    entries.set("rollout_logprob", column(goldens()["rollout"]));
    entries.set("old_logprob", tokens.old);
    entries.set("reference_logprob", tokens.reference);
    entries.set("advantage", column(goldens()["sequence_advantage"]));
    entries.set("correction", column(goldens()["correction"]));
    entries.set("weight", column(goldens()["sequence_weight"]));
    auto config = config_of(
        {{"kl_coef", golden["kl_coef"]}, {"entropy_aggregation", golden["entropy_aggregation"]}});
    config.correction.opsm_delta = golden["opsm_delta"];
    rl::LossContext context{golden["kl_coef"], golden["entropy_coef"], tokens.logprob.size(0),
                            static_cast<int64_t>(goldens()["lengths"].size()), nullptr};
    rl::Figures figures;
    const at::Tensor loss =
        rl::policy_gradient_loss(tokens.logprob, entropy, entries, config, context, figures);
    CHECK(loss.item<double>() == Approx(golden["loss"].get<double>()).margin(1e-12));
    CHECK((test::fetched(figures)["opsm_masked"] > 0) == (config.correction.opsm_delta > 0));
    loss.backward();
    CHECK(max_abs_diff(tokens.logprob.grad(), column(golden["gradient"])) < 1e-12);
    const at::Tensor grad =
        entropy.grad().defined() ? entropy.grad() : at::zeros_like(entropy.detach());
    CHECK(max_abs_diff(grad, column(golden["entropy_gradient"])) < 1e-12);
  }
}

TEST_CASE("a wild ratio neither overflows nor makes the gradient NaN") {
  for (const rl::PolicyLoss* loss : rl::policy_losses()) {
    rl::AlgorithmConfig config;
    config.loss = loss->name;
    Tokens tokens;
    tokens.old = at::full_like(tokens.old, -900.0);
    objective(tokens, config).sum().backward();
    CHECK(tokens.logprob.grad().isfinite().all().item<bool>());
  }
}

TEST_CASE("gradients that are true derivatives equal finite differences") {
  // cispo, dppo_tv, dppo_kl and the straight-through estimates hold parts of themselves fixed:
  // theirs are not.
  for (const auto& golden : goldens()["losses"]) {
    const auto config = config_of(golden["keys"]);
    if (config.loss == "cispo" || config.loss.starts_with("dppo")) {
      continue;
    }
    CAPTURE(golden["name"].get<std::string>());
    const Tokens tokens;
    CHECK(test::worst_gradient_error([&] { return objective(tokens, config).sum(); },
                                     {tokens.logprob}) < 1e-8);
  }
  for (const char* estimator : {"k1", "abs", "k2", "k3", "k3_unbiased"}) {
    CAPTURE(estimator);
    const Tokens tokens;
    const auto config = config_of({{"kl_estimator", estimator}});
    CHECK(test::worst_gradient_error([&] { return kl(tokens, config).sum(); }, {tokens.logprob}) <
          1e-8);
  }
}

TEST_CASE("clipping reproduces the golden numbers: dual clip 3, two-sided 4") {
  const auto loss_at = [](double advantage, double ratio, const rl::AlgorithmConfig& config) {
    const rl::PolicyTerms terms{at::full({1}, std::log(ratio), at::kDouble),
                                at::zeros({1}, at::kDouble), at::full({1}, advantage, at::kDouble)};
    const rl::SequenceMeans alone(at::zeros({1}, at::kLong), 1, nullptr);
    return rl::policy_objective(terms, rl::policy_log_ratio(terms, config, alone), config, alone)
        .item<double>();
  };
  rl::AlgorithmConfig config;
  config.loss_keys.at("ppo_clip.dual_clip") = 3.0;
  CHECK(loss_at(-1, 5, config) == Approx(3.0));
  CHECK(loss_at(-1, 1.5, config) == Approx(1.5));
  CHECK(loss_at(1, 1.5, config) == Approx(-1.2));
  config.loss_keys.at("ppo_clip.dual_clip") = 0.0;
  config.loss_keys.at("ppo_clip.delta") = 4.0;
  CHECK(loss_at(-1, 5, config) == Approx(4.0));
  CHECK(loss_at(-1, 1.5, config) == Approx(1.5));
}

TEST_CASE("no token at all still has a gradient path, for every loss") {
  for (const rl::PolicyLoss* loss : rl::policy_losses()) {
    rl::AlgorithmConfig config;
    config.loss = loss->name;
    const at::Tensor logprob = at::empty({0}, at::kDouble).requires_grad_();
    const at::Tensor none = at::empty({0}, at::kDouble);
    const rl::PolicyTerms terms{logprob, none, none};
    const rl::SequenceMeans nothing(at::empty({0}, at::kLong), 3, nullptr);
    rl::policy_objective(terms, rl::policy_log_ratio(terms, config, nothing), config, nothing)
        .sum()
        .backward();
    CHECK(logprob.grad().numel() == 0);
  }
}
