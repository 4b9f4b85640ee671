// Guards: the wrong baseline, standard deviation, epsilon or group. Golden numbers are the systems'
// formulas in plain fp64 for rewards [1,0,0,1,0,0,0,0], under the keys of each system's preset.
#include "rl/algorithm/advantages.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/rl/formula_config.h"

using namespace ringside::rl;

namespace {

const std::vector<double> kRewards{1, 0, 0, 1, 0, 0, 0, 0};

AdvantageConfig advantage_config(std::vector<std::string> words) {
  for (std::string& word : words) {
    word.insert(0, "algorithm.");
  }
  return ringside::test::formula_config(words).algorithm.advantage;
}

}  // namespace

TEST_CASE("group advantages reproduce each system's golden numbers") {
  struct Golden {
    std::vector<std::string> words;
    double winner, loser;
  };
  const auto golden = GENERATE(values<Golden>({
      {{"preset=verl"}, 1.62018167, -0.54006056},
      {{"preset=slime"}, 1.62018167, -0.54006056},
      {{"preset=skyrl"}, 1.62018167, -0.54006056},
      {{"preset=roll"}, 1.62018167, -0.54006056},
      {{"preset=trl"}, 1.61983525, -0.53994508},
      {{"preset=areal"}, 1.62015018, -0.54005006},
      {{"preset=openrlhf"}, 1.62018517, -0.54006172},
      {{"preset=dr_grpo"}, 0.75, -0.25},
      {{"preset=prime_rl"}, 0.75, -0.25},
      {{"preset=trl", "advantage.unbiased=false", "advantage.eps=1e-8"},
       1.73205077,
       -0.57735026},  // asynchronous GRPO
      {{"preset=nemo_rl"}, 2.26778084, -0.58553884},
      {{"preset=pipeline_rl"}, 1.85124029, -0.61708010},
      {{"preset=rloo"}, 0.85714286, -0.28571429},
      {{"preset=prime_rl", "advantage.estimator=max_rl"}, 3.0, -1.0},
  }));
  const auto advantages = group_advantages(kRewards, 8, advantage_config(golden.words));
  CAPTURE(golden.words);
  CHECK(std::abs(advantages[0] - golden.winner) < 1e-8);
  CHECK(std::abs(advantages[1] - golden.loser) < 1e-8);
  CHECK(advantages[3] == Approx(advantages[0]));
  CHECK(advantages[7] == Approx(advantages[1]));
}

TEST_CASE("groups do not mix; equal rewards and groups of one give zero, whatever the estimator") {
  const auto estimator = GENERATE(as<std::string>(), "group_mean", "rloo", "pass_at_k", "max_rl");
  const AdvantageConfig config =
      advantage_config({"advantage.estimator=" + estimator, "advantage.eps=0"});
  const auto two = group_advantages(std::vector<double>{1, 0, 0.1, 0.1, 0.1, 0.1}, 2, config);
  CHECK(two[0] > 0.5);
  CHECK(std::vector<double>(two.begin() + 2, two.end()) == std::vector<double>(4, 0.0));
  CHECK(group_advantages(std::vector<double>{3, 4}, 1, config) == std::vector<double>{0, 0});
  CHECK(group_advantages(std::vector<double>(3, 0.1), 3, config) == std::vector<double>(3, 0.0));
  CHECK(group_advantages({}, 4, config).empty());
}

TEST_CASE("the best of a group alone learns from pass_at_k") {
  AdvantageConfig config =
      advantage_config({"advantage.estimator=pass_at_k", "advantage.std=none"});
  CHECK(group_advantages(std::vector<double>{1, 5, 3, 0}, 4, config) ==
        std::vector<double>{0, 2, 0, 0});
  CHECK(group_advantages(std::vector<double>{5, 5, 3, 0}, 4, config) ==
        std::vector<double>(4, 0.0));
}

TEST_CASE("opo takes a mean weighted by the lengths, which it needs") {
  const AdvantageConfig config = advantage_config({"advantage.estimator=opo"});
  // A long failure weighs as much as three short successes.
  CHECK(group_advantages(std::vector<double>{1, 0, 0, 1}, 2, config, {},
                         std::vector<int64_t>{1, 3, 4, 0}) ==
        std::vector<double>{0.75, -0.25, 0, 1});
  CHECK(group_advantages(std::vector<double>{1, 0}, 2, config, {}, std::vector<int64_t>{0, 0}) ==
        std::vector<double>{0, 0});
  CHECK_THROWS_WITH(group_advantages(std::vector<double>{1, 0}, 2, config),
                    Catch::Contains("lengths of 0 samples, expected 2"));
}

TEST_CASE("gpg_scale counts the samples whose reward is not 0, failed ones left out") {
  const AdvantageConfig config =
      advantage_config({"advantage.std=none", "advantage.gpg_scale=true"});
  CHECK(group_advantages(std::vector<double>{1, 0, 0, 0}, 2, config) ==
        std::vector<double>{2, -2, 0, 0});
  CHECK(group_advantages(std::vector<double>{1, 0, 0, 0}, 2, config, {true, true, false, false}) ==
        std::vector<double>{1, -1, 0, 0});
}

TEST_CASE("max_rl gives nothing where the mean is not above zero") {
  const AdvantageConfig config = advantage_config({"advantage.estimator=max_rl"});
  CHECK(group_advantages(std::vector<double>{-1, 0, 1, -1}, 2, config) ==
        std::vector<double>(4, 0.0));
}

TEST_CASE("a standard deviation of exactly zero among the others leaves an advantage undivided") {
  const AdvantageConfig config = advantage_config({"preset=nemo_rl"});
  const auto advantages = group_advantages(std::vector<double>{1, 0.1, 0.1, 0.1}, 4, config);
  CHECK(advantages[0] == Approx(0.9));
  CHECK(advantages[1] == Approx(-0.3 / (std::sqrt(0.27) + 1e-6)));
}

TEST_CASE("weights decide how much each reward counts for gdpo, spreads do not") {
  const AdvantageConfig config = advantage_config({"advantage.estimator=gdpo", "advantage.eps=0"});
  const std::vector<double> correct{1, 0, 1, 0}, brief{0, 0, 1, 1};
  const std::vector<double> large{0, 0, 1000, 1000};
  const auto even = gdpo_advantages(std::vector{correct, brief}, std::vector{1.0, 1.0}, 4, config);
  const auto scaled =
      gdpo_advantages(std::vector{correct, large}, std::vector{1.0, 1.0}, 4, config);
  const auto weighted =
      gdpo_advantages(std::vector{correct, brief}, std::vector{1.0, 0.1}, 4, config);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(scaled[i] == Approx(even[i]).margin(1e-12));
  }
  CHECK(even[0] == Approx(even[3]).margin(1e-12));
  CHECK(weighted[0] > 0.7);
  CHECK(weighted[3] < -0.7);
  CHECK(gdpo_advantages(std::vector<std::vector<double>>(1, std::vector<double>(4, 0.1)),
                        std::vector{1.0}, 4, config) == std::vector<double>(4, 0.0));
}

TEST_CASE("what advantages cannot be computed from is said") {
  const AdvantageConfig grpo = advantage_config({});
  CHECK_THROWS_WITH(group_advantages(std::vector<double>{1, 2, 3}, 2, grpo),
                    Catch::Contains("3 rewards"));
  CHECK_THROWS_WITH(group_advantages(std::vector<double>{1, 2}, 0, grpo),
                    Catch::Contains("groups of 0"));
  const auto estimator = GENERATE(as<std::string>(), "gdpo", "reinforce", "gae");
  CHECK_THROWS_WITH(group_advantages(std::vector<double>{1, 2}, 2,
                                     advantage_config({"advantage.estimator=" + estimator})),
                    Catch::Contains("estimator " + estimator));
  AdvantageConfig best = advantage_config({"advantage.estimator=pass_at_k"});
  best.std = AdvantageStd::kBatch;
  CHECK_THROWS_WITH(group_advantages(std::vector<double>{1, 2}, 2, best),
                    Catch::Contains("pass_at_k knows std group"));
  CHECK_THROWS_WITH(gdpo_advantages({}, {}, 2, grpo), Catch::Contains("at least one"));
  CHECK_THROWS_WITH(gdpo_advantages(std::vector<std::vector<double>>{{1, 2}, {1, 2, 3, 4}},
                                    std::vector{1.0, 1.0}, 2, grpo),
                    Catch::Contains("for 4 samples, the first for 2"));
}

TEST_CASE("reward statistics and groups without variance are per group") {
  const auto stats = reward_statistics(std::vector<double>{1, 0, 5, 5}, 2);
  CHECK(stats.reward == Approx(2.75));
  CHECK(stats.reward_std == Approx(std::sqrt(0.5) / 2));
  CHECK(stats.frac_reward_zero_std == Approx(0.5));
  CHECK(groups_without_variance(std::vector<double>{1, 0, 0.1, 0.1, 0, 1}, 2) ==
        std::vector<bool>{false, true, false});
  CHECK_THROWS_WITH(groups_without_variance(std::vector<double>{1, 2, 3}, 2),
                    Catch::Contains("3 rewards"));
}

TEST_CASE("equal rewards have a standard deviation of exactly 0") {
  for (const double reward : {0.1, 0.3, 0.7}) {
    for (int64_t n = 2; n <= 16; ++n) {
      CAPTURE(reward, n);
      const std::vector<double> equal(static_cast<std::size_t>(n), reward);
      CHECK(reward_statistics(equal, n).reward_std == 0.0);
    }
  }
}
