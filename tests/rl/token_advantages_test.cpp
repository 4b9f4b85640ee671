// Guards: an advantage, return or KL at the wrong token, sample or scale. Oracle: PyTorch fp64 on
// padded tensors (tests/goldens/advantages.py), closed forms.
#include "rl/algorithm/token_advantages.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "rl/algorithm/correction.h"
#include "tests/rl/formula_config.h"
#include "tests/rl/statistics_goldens.h"

using namespace ringside;
using rl::AlgorithmConfig;
using test::distance;

namespace {

// The algorithm of a case, through the words of a recipe.
AlgorithmConfig token_config(const nlohmann::json& keys) {
  static const std::set<std::string> kOfAdvantage = {
      "estimator",  "std",           "unbiased", "eps",    "whiten",
      "whiten_eps", "whiten_eps_in", "gamma",    "lambda", "gpg_scale"};
  std::vector<std::string> words;
  for (const auto& [key, value] : keys.items()) {
    const std::string path =
        kOfAdvantage.contains(key) ? "algorithm.advantage." + key : "algorithm." + key;
    words.push_back(path + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return test::formula_config(words).algorithm;
}

rl::StepColumns table_of(std::vector<int64_t> begin, std::vector<double> value = {}) {
  const auto n = static_cast<std::size_t>(begin.back());
  return {std::move(begin),
          std::vector<double>(n, -1.0),
          std::vector<double>(n, -1.0),
          {},
          std::move(value),
          {}};
}

rl::SampleRewards totals(std::vector<double> total) { return {{"all"}, {1.0}, {total}, total, {}}; }

}  // namespace

TEST_CASE("advantages of every estimator are PyTorch's") {
  std::map<std::string, int> seen;
  for (const auto& golden : test::advantage_goldens()["advantages"]) {
    const std::size_t batch = golden["batch"];
    const AlgorithmConfig config = token_config(golden["keys"]);
    const auto got = rl::step_advantages(test::golden_table(batch), test::golden_rewards(batch),
                                         test::advantage_goldens()["batches"][batch]["group_size"],
                                         config, config.kl_coef);
    CAPTURE(batch, golden["keys"].dump());
    CHECK(distance(got.advantage, golden["advantage"]) < 1e-12);
    CHECK(distance(got.returns, golden.value("returns", std::vector<double>{})) < 1e-12);
    CHECK(distance({got.kl}, {golden["kl"].get<double>()}) < 1e-12);
    ++seen[golden["keys"]["estimator"]];
  }
  CHECK(seen.size() == 9);
}

TEST_CASE("a correction weighs the path of the optimal token baseline, by its square") {
  for (const auto& golden : test::advantage_goldens()["weighed"]) {
    const std::size_t batch = golden["batch"];
    const AlgorithmConfig config = token_config(golden["keys"]);
    rl::StepColumns table = test::golden_table(batch);
    rl::CorrectionConfig correction;
    correction.mode = rl::CorrectionMode::kTis;
    table.correction = rl::correction_weights(table, correction).weight;
    const auto got = rl::step_advantages(table, test::golden_rewards(batch),
                                         test::advantage_goldens()["batches"][batch]["group_size"],
                                         config, config.kl_coef);
    CHECK(distance(got.advantage, golden["advantage"]) < 1e-12);
  }
}

TEST_CASE("a token baseline needs squared probabilities, one for each loss token") {
  AlgorithmConfig config;
  config.advantage.estimator = rl::AdvantageEstimator::kOptimalTokenBaseline;
  const auto table = table_of({0, 2, 3});
  CHECK_THROWS_WITH(rl::step_advantages(table, totals({1, 0}), 2, config, 0),
                    Catch::Contains("squares has 0 numbers for 3 loss tokens"));
}

TEST_CASE("KL values are the golden numbers, in any form") {
  using rl::KlEstimator;
  for (const auto estimator : {KlEstimator::kK1, KlEstimator::kK1Straight}) {
    CHECK(rl::kl_value(estimator, -0.3) == -0.3);
  }
  for (const auto estimator : {KlEstimator::kAbs, KlEstimator::kAbsStraight}) {
    CHECK(rl::kl_value(estimator, -0.3) == 0.3);
  }
  CHECK(rl::kl_value(KlEstimator::kK2, 0.3) == Approx(0.045).epsilon(1e-12));
  for (const auto estimator : {KlEstimator::kK3, KlEstimator::kK3Straight, KlEstimator::kK3Score,
                               KlEstimator::kK3Unbiased}) {
    CHECK(std::abs(rl::kl_value(estimator, 0.3) - 0.04081822) < 1e-8);
    CHECK(std::abs(rl::kl_value(estimator, -0.3) - 0.04985881) < 1e-8);
  }
}

TEST_CASE("a bounded KL value is clamped: k3 by its own bound, every estimate by the other") {
  AlgorithmConfig config;
  CHECK(rl::bounded_kl_value(config, -3.0) == rl::kl_value(config.kl_estimator, -3.0));
  config.k3_bound = 10.0;
  CHECK(rl::bounded_kl_value(config, -900.0) == 10.0);
  CHECK(rl::bounded_kl_value(config, -2.0) == Approx(std::exp(2.0) - 3.0));
  config.kl_estimator = rl::KlEstimator::kK1;
  CHECK(rl::bounded_kl_value(config, -30.0) == -30.0);
  config.kl_bound = 10.0;
  CHECK(rl::bounded_kl_value(config, -30.0) == -10.0);
}

TEST_CASE("a sample that failed counts in no statistic of its group or of the step") {
  AlgorithmConfig config;
  config.advantage.eps = 0.0;
  rl::SampleRewards rewards = totals({1, 0, 0, 1.0 / 3, 5, 5, 5, 5});
  rewards.scored = {true, true, true, false, false, true, true, true};
  const auto table = table_of({0, 1, 2, 3, 3, 3, 4, 5, 6});
  const double std = std::sqrt(1.0 / 3);  // of 1, 0, 0 over n - 1
  CHECK(distance(rl::step_advantages(table, rewards, 4, config, 0).advantage,
                 {2.0 / 3 / std, -1.0 / 3 / std, -1.0 / 3 / std, 0, 0, 0}) < 1e-12);
  config.advantage.estimator = rl::AdvantageEstimator::kRloo;
  config.advantage.std = rl::AdvantageStd::kNone;
  CHECK(distance(rl::step_advantages(table, rewards, 4, config, 0).advantage,
                 {1, -0.5, -0.5, 0, 0, 0}) < 1e-12);
  rewards.scored.pop_back();
  CHECK_THROWS_WITH(rl::step_advantages(table, rewards, 4, config, 0),
                    Catch::Contains("flags of scored samples for 7 samples, expected 8"));
}

// Two groups of `size` with the same tokens and rewards; `missing` samples of each, at different
// places, have failed. What is filled in for these must not count.
rl::StepAdvantages advantages_without(std::size_t missing, const AlgorithmConfig& config) {
  const std::size_t size = 4 + missing;
  const std::vector<double> totals_of_both{1, 0, 0.25, -2, 0.5, 3, 0, 1};
  const std::vector<int64_t> lengths{3, 1, 4, 2, 5, 2, 1, 3};
  rl::SampleRewards rewards{{"first", "second"}, {1.0, 0.5}, {{}, {}}, {}, {}};
  std::vector<int64_t> begin{0};
  std::size_t next = 0;
  for (std::size_t i = 0; i < 2 * size; ++i) {
    const std::size_t place = i % size;
    const bool failed = i < size ? place < missing : place >= 4;
    const double total = failed ? 99.0 + static_cast<double>(i) : totals_of_both.at(next);
    rewards.total.push_back(total);
    rewards.by_name[0].push_back(total / 2);
    rewards.by_name[1].push_back(total);
    rewards.scored.push_back(!failed);
    begin.push_back(begin.back() + (failed ? 0 : lengths.at(next)));
    next += failed ? 0 : 1;
  }
  std::vector<double> value;
  for (int64_t i = 0; i < begin.back(); ++i) {
    value.push_back(0.1 * static_cast<double>(i % 7) - 0.2);
  }
  rl::StepColumns table = table_of(begin, value);
  table.squares = value;
  for (double& square : table.squares) {
    square = 0.3 + square * square;
  }
  return rl::step_advantages(table, rewards, static_cast<int64_t>(size), config, 0);
}

TEST_CASE("a group that lacks samples has the advantages of a group of the others alone") {
  const auto words = GENERATE(values<nlohmann::json>({
      {{"estimator", "group_mean"}},
      {{"estimator", "group_mean"}, {"std", "batch"}},
      {{"estimator", "group_mean"}, {"std", "none"}, {"gpg_scale", true}},
      {{"estimator", "rloo"}, {"std", "none"}},
      {{"estimator", "rloo"}, {"std", "leave_one_out"}},
      {{"estimator", "rloo"}, {"std", "group"}, {"unbiased", false}},
      {{"estimator", "pass_at_k"}},
      {{"estimator", "max_rl"}},
      {{"estimator", "opo"}},
      {{"estimator", "gdpo"}},
      {{"estimator", "reinforce"}, {"whiten", "sequences"}},
      {{"estimator", "optimal_token_baseline"}},
      {{"estimator", "gae"}, {"whiten", "tokens"}},
  }));
  CAPTURE(words.dump());
  const AlgorithmConfig config = token_config(words);
  const auto whole = advantages_without(0, config).advantage;
  REQUIRE(std::ranges::any_of(whole, [](double a) { return a != 0; }));
  for (const std::size_t missing : {1, 2, 3}) {
    CHECK(distance(advantages_without(missing, config).advantage, whole) < 1e-12);
  }
}

TEST_CASE("returns and generalized advantages over one sample are the closed forms") {
  AlgorithmConfig config;
  config.advantage.gamma = 0.5;
  config.advantage.estimator = rl::AdvantageEstimator::kReinforce;
  auto rewards = totals({8, 0});
  rewards.turns = {{0, 1, 2.0}};
  CHECK(rl::step_advantages(table_of({0, 3, 3}), rewards, 1, config, 0).advantage ==
        std::vector<double>{3, 6, 8});
  config.advantage.estimator = rl::AdvantageEstimator::kGae;
  config.advantage.lambda = 0.0;  // one-step temporal differences
  const auto gae = rl::step_advantages(table_of({0, 3, 3}, {1, 2, 4}), rewards, 1, config, 0);
  CHECK(gae.advantage == std::vector<double>{0, 2, 4});
  CHECK(gae.returns == std::vector<double>{1, 4, 8});
  CHECK(gae.sample_score == std::vector<double>{10, 0});
}

TEST_CASE("given advantages are taken as they came; the KL comes off after them, whitening last") {
  AlgorithmConfig config = token_config({{"estimator", "given"}});
  auto table = table_of({0, 2, 2, 3});
  CHECK_THROWS_WITH(rl::step_advantages(table, totals({5, 6, 7}), 1, config, 0),
                    Catch::Contains("given has 0 numbers for 3"));
  table.given = {0.5, -2, 4};
  const auto got = rl::step_advantages(table, totals({5, 6, 7}), 1, config, 0);
  CHECK(got.advantage == table.given);
  CHECK(got.sample_score == std::vector<double>{5, 6, 7});
  table.reference = {-2, -1, -1};  // k1 is 1 on the first token and 0 on the others
  config.kl_estimator = rl::KlEstimator::kK1;
  config.kl_in = rl::KlIn::kAdvantage;
  config.kl_coef = 0.25;
  CHECK(rl::step_advantages(table, totals({0, 0, 0}), 1, config, 0.25).advantage ==
        std::vector<double>{0.25, -2, 4});
  config.kl_in = rl::KlIn::kReward;
  CHECK_THROWS_WITH(rl::step_advantages(table, totals({0, 0, 0}), 1, config, 0.25),
                    Catch::Contains("kl_in reward"));
  config.kl_in = rl::KlIn::kLoss;
  config.advantage.whiten = rl::Whiten::kTokens;
  const auto white = rl::step_advantages(table, totals({0, 0, 0}), 1, config, 0.25).advantage;
  CHECK(white[0] + white[1] + white[2] == Approx(0).margin(1e-12));
  table.given[1] = std::nan("");
  CHECK_THROWS_WITH(rl::step_advantages(table, totals({0, 0, 0}), 1, config, 0),
                    Catch::Contains("given of sample 0"));
}

TEST_CASE("a teacher's log-probs come off the advantages of its samples, not whitened") {
  AlgorithmConfig config = token_config({{"std", "none"}, {"whiten", "tokens"}});
  auto table = table_of({0, 2, 3});
  const auto plain = rl::step_advantages(table, totals({0, 2}), 2, config, 0).advantage;
  config.distillation.teacher = "teacher";
  config.distillation.coef = 0.5;
  CHECK_THROWS_WITH(rl::step_advantages(table, totals({0, 2}), 2, config, 0),
                    Catch::Contains("teacher has 0 numbers for 3"));
  table.teacher = {table.old[0] - 2, table.old[1] + 1, table.old[2]};
  const auto distilled = rl::step_advantages(table, totals({0, 2}), 2, config, 0).advantage;
  CHECK(distilled == std::vector<double>{plain[0] - 1, plain[1] + 0.5, plain[2]});
  config.distillation.over = rl::DistillationOver::kVocabulary;  // a loss, and no advantage
  CHECK(rl::step_advantages(table, totals({0, 2}), 2, config, 0).advantage == plain);
}

TEST_CASE("a sample without a loss token counts in its group") {
  const AlgorithmConfig config = token_config({{"std", "none"}});
  const auto got = rl::step_advantages(table_of({0, 0, 2, 2}), totals({4, 1, 1}), 3, config, 0);
  CHECK(got.advantage == std::vector<double>{-1, -1});
  auto rewards = totals({0, 1, 1});
  rewards.turns = {{0, 77, 4.0}};  // whose token cannot be one of the sample's
  CHECK(rl::step_advantages(table_of({0, 0, 2, 2}), rewards, 3, config, 0).advantage ==
        std::vector<double>{-1, -1});
}

TEST_CASE("whitened advantages have mean 0 and variance 1; equal ones become 0") {
  AlgorithmConfig config =
      token_config({{"whiten", "tokens"}, {"whiten_eps", 0.0}, {"estimator", "reinforce"}});
  const auto a =
      rl::step_advantages(table_of({0, 1, 2, 4}), totals({1, 2, 6}), 1, config, 0).advantage;
  CHECK(a[0] + a[1] + a[2] + a[3] == Approx(0).margin(1e-12));
  CHECK(a[0] * a[0] + a[1] * a[1] + a[2] * a[2] + a[3] * a[3] == Approx(3));
  CHECK(rl::step_advantages(table_of({0, 1, 3}), totals({0.1, 0.1}), 1, config, 0).advantage ==
        std::vector<double>(3, 0.0));
  CHECK(rl::step_advantages(table_of({0, 1}), totals({0.1}), 1, config, 0).advantage ==
        std::vector<double>{0});
  CHECK(rl::step_advantages(table_of({0, 0, 0}), totals({0.1, 2}), 1, config, 0).advantage.empty());
  config.advantage.whiten = rl::Whiten::kSequences;
  const auto s =
      rl::step_advantages(table_of({0, 1, 2, 4}), totals({1, 2, 6}), 1, config, 0).advantage;
  CHECK(s[0] + s[1] + s[2] == Approx(0).margin(1e-12));
  CHECK(s[0] * s[0] + s[1] * s[1] + s[2] * s[2] == Approx(2));
  CHECK(s[3] == s[2]);
}

TEST_CASE("rewards are scaled, then clipped, then the overlong penalty is taken off") {
  const rl::RewardShapingConfig config{
      .scale = 2.0, .clip = 3.0, .overlong_buffer_tokens = 10, .overlong_factor = 0.5};
  rl::SampleRewards rewards{
      {"a", "b"}, {1.0, -1.0}, {{4, 1, 0}, {1, 0, 2}}, {3, 1, -2}, {{0, 0, 0.25}}};
  const std::vector<int64_t> lengths{100, 95, 10};
  const auto shaped = rl::shape_rewards(rewards, lengths, 100, config);
  CHECK(shaped.total == std::vector<double>{3 - 0.5, 2 - 0.25, -3});
  CHECK(shaped.names == std::vector<std::string>{"a", "b", "overlong_penalty"});
  CHECK(shaped.weight == std::vector<double>{2, -2, 0.5});
  CHECK(shaped.by_name[2] == std::vector<double>{-1, -0.5, 0});
  CHECK(shaped.turns[0].value == 0.25);
  const auto plain = rl::shape_rewards(rewards, {}, 100, {});
  CHECK(plain.total == rewards.total);
  CHECK(plain.names.size() == 2);
  CHECK_THROWS_WITH(rl::shape_rewards(rewards, std::vector<int64_t>{1}, 100, config),
                    Catch::Contains("for 1 samples, expected 3"));
}

TEST_CASE("what a step's advantages cannot be computed from is said, naming the sample") {
  const auto step = [](const rl::StepColumns& table, const rl::SampleRewards& rewards,
                       const nlohmann::json& keys) {
    const AlgorithmConfig config = token_config(keys);
    return rl::step_advantages(table, rewards, 2, config, config.kl_coef);
  };
  const rl::StepColumns table = table_of({0, 2, 3});
  const nlohmann::json kl_reward = {{"kl_coef", 0.1}, {"kl_in", "reward"}};
  CHECK_THROWS_WITH(step({}, totals({}), {}), Catch::Contains("start with 0"));
  CHECK_THROWS_WITH(step(table_of({0, 2, 1}), totals({1, 2}), {}),
                    Catch::Contains("sample 1 ends at loss token 1"));
  CHECK_THROWS_WITH(step(table, totals({1, 2, 3}), {}),
                    Catch::Contains("for 3 samples, expected 2"));
  CHECK_THROWS_WITH(step(table, totals({1, std::nan("")}), {}),
                    Catch::Contains("of sample 1 is nan"));
  CHECK_THROWS_WITH(step(table, totals({1, 2}), kl_reward),
                    Catch::Contains("reference has 0 numbers for 3"));
  CHECK_THROWS_WITH(step(table, totals({1, 2}), {{"estimator", "gae"}}),
                    Catch::Contains("value has 0 numbers for 3"));
  rl::StepColumns infinite = table;
  infinite.old[2] = -std::numeric_limits<double>::infinity();
  infinite.reference = table.old;
  CHECK_THROWS_WITH(step(infinite, totals({1, 2}), kl_reward),
                    Catch::Contains("old of sample 1 is -inf at loss token 2"));
  auto turns = totals({1, 2});
  turns.turns = {{0, 2, 1.0}};
  CHECK_THROWS_WITH(step(table, turns, {}),
                    Catch::Contains("sample 0 is at loss token 2, outside its 0 to 2"));
  turns.turns = {{2, 0, 1.0}};
  CHECK_THROWS_WITH(step(table, turns, {}), Catch::Contains("sample 2, but there are 2 samples"));
  turns.turns = {{1, 2, std::nan("")}};
  CHECK_THROWS_WITH(step(table, turns, {}), Catch::Contains("sample 1 is nan"));
  AlgorithmConfig gdpo = token_config({{"estimator", "gdpo"}});
  gdpo.reward.clip = 1.0;
  CHECK_THROWS_WITH(rl::step_advantages(table, totals({1, 2}), 2, gdpo, 0),
                    Catch::Contains("reward.clip"));
  gdpo.reward.clip = 0.0;
  auto unweighted = totals({1, 2});
  unweighted.weight.clear();
  CHECK_THROWS_WITH(rl::step_advantages(table, unweighted, 2, gdpo, 0),
                    Catch::Contains("1 rewards, 0 weights"));
}
