// Guards: the wrong standard deviation, epsilon or denominator. Golden numbers are the formulas in plain fp64 for rewards
// [1,0,0,1,0,0,0,0] and per-token losses {[1,2,3],[4]}.
#include <catch2/catch.hpp>

#include "rl/algorithm/advantages.h"
#include "rl/algorithm/loss_weights.h"

using namespace ringside::rl;

namespace {
const std::vector<double> kRewards{1, 0, 0, 1, 0, 0, 0, 0};
}

TEST_CASE("group advantages reproduce each system's golden numbers") {
  struct Golden {
    AdvantageConfig config;
    double winner, loser;
  };
  const auto golden = GENERATE(Golden{{AdvantageStd::kGroup, 1e-6, true}, 1.62018167, -0.54006056},   // verl, slime
                               Golden{{AdvantageStd::kGroup, 1e-4, true}, 1.61983525, -0.53994508},   // TRL
                               Golden{{AdvantageStd::kGroup, 1e-5, true}, 1.62015018, -0.54005006},   // AReaL
                               Golden{{AdvantageStd::kGroup, 1e-8, false}, 1.73205077, -0.57735026},  // TRL async
                               Golden{{AdvantageStd::kNone, 1e-4, true}, 0.75, -0.25});               // Dr. GRPO
  const auto advantages = group_advantages(kRewards, 8, golden.config);
  CHECK(advantages[0] == Approx(golden.winner).margin(1e-8));
  CHECK(advantages[1] == Approx(golden.loser).margin(1e-8));
}

TEST_CASE("groups do not mix; equal rewards and groups of one give zero") {
  const auto two = group_advantages(std::vector<double>{1, 0, 5, 5}, 2, {});
  CHECK(two[0] == Approx(-two[1]));
  CHECK(two[0] > 0.5);
  CHECK(two[2] == 0.0);
  CHECK(group_advantages(std::vector<double>{3, 4}, 1, {}) == std::vector<double>{0, 0});
  CHECK_THROWS_WITH(group_advantages(std::vector<double>{1, 2, 3}, 2, {}), Catch::Contains("3 rewards"));
}

TEST_CASE("reward statistics are per group") {
  const auto stats = reward_statistics(std::vector<double>{1, 0, 5, 5}, 2);
  CHECK(stats.reward == Approx(2.75));
  CHECK(stats.reward_std == Approx(std::sqrt(0.5) / 2));
  CHECK(stats.frac_reward_zero_std == Approx(0.5));
}

TEST_CASE("loss weights reproduce the aggregations' golden numbers") {
  const std::vector<int64_t> counts{3, 1};
  const auto aggregate = [&](LossAggregation mode, double divisor) {
    const auto w = loss_weights(counts, mode, divisor);
    return w[0] * (1 + 2 + 3) + w[1] * 4;
  };
  CHECK(aggregate(LossAggregation::kTokenMean, 0) == Approx(2.5));
  CHECK(aggregate(LossAggregation::kSeqMeanTokenMean, 0) == Approx(3.0));
  CHECK(aggregate(LossAggregation::kSeqMeanTokenSum, 0) == Approx(5.0));
  CHECK(aggregate(LossAggregation::kConstant, 4) == Approx(1.25));
}

TEST_CASE("sequences without a loss token get weight zero and nothing divides by zero") {
  for (const auto mode : {LossAggregation::kTokenMean, LossAggregation::kSeqMeanTokenMean}) {
    CHECK(loss_weights(std::vector<int64_t>{0, 0}, mode, 0) == std::vector<double>{0, 0});
  }
  CHECK(loss_weights(std::vector<int64_t>{0, 2}, LossAggregation::kSeqMeanTokenMean, 0)[1] == 0.25);
  CHECK_THROWS_WITH(loss_weights(std::vector<int64_t>{1}, LossAggregation::kConstant, 0), Catch::Contains("loss_divisor"));
}
