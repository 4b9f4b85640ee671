// Guards: the wrong denominator of a loss, coefficients that move the wrong way. Golden numbers are
// per-token losses
// {[1,2,3],[4]} in plain fp64.
#include "rl/algorithm/loss_weights.h"

#include <catch2/catch.hpp>
#include <limits>

#include "rl/algorithm/adaptive.h"

using namespace ringside::rl;

TEST_CASE("loss weights reproduce the aggregations' golden numbers") {
  const std::vector<int64_t> counts{3, 1};
  const auto aggregate = [&](LossAggregation mode, double divisor) {
    const auto w = loss_weights(counts, mode, divisor);
    return w[0] * (1 + 2 + 3) + w[1] * 4;
  };
  CHECK(aggregate(LossAggregation::kTokenMean, 0) == Approx(2.5));
  CHECK(aggregate(LossAggregation::kTokenSum, 0) == Approx(10.0));
  CHECK(aggregate(LossAggregation::kSeqMeanTokenMean, 0) == Approx(3.0));
  CHECK(aggregate(LossAggregation::kSeqMeanTokenSum, 0) == Approx(5.0));
  CHECK(aggregate(LossAggregation::kConstant, 4) == Approx(1.25));
  CHECK(aggregate(LossAggregation::kMicroBatchTokenMean, 0) ==
        Approx(10.0));  // divided where micro-batches are known
}

TEST_CASE("sequences without a loss token get weight zero and nothing divides by zero") {
  for (std::size_t mode = 0; mode < EnumNames<LossAggregation>::kNames.size(); ++mode) {
    CHECK(loss_weights(std::vector<int64_t>{0, 0}, static_cast<LossAggregation>(mode), 1.0) ==
          std::vector<double>{0, 0});
  }
  CHECK(loss_weights(std::vector<int64_t>{0, 2}, LossAggregation::kSeqMeanTokenMean, 0)[1] == 0.25);
  CHECK_THROWS_WITH(loss_weights(std::vector<int64_t>{1}, LossAggregation::kConstant, 0),
                    Catch::Contains("loss_divisor"));
}

TEST_CASE("an adaptive KL coefficient follows the controller of Ziegler et al.") {
  AlgorithmConfig config;
  config.kl_horizon = 1000;
  CHECK(next_kl_coef(0.1, 5.0, 100, config) == 0.1);  // no target
  config.kl_target = 2.0;
  CHECK(next_kl_coef(0.1, 2.2, 100, config) == Approx(0.1 * (1 + 0.1 * 0.1)));
  CHECK(next_kl_coef(0.1, 1.8, 100, config) == Approx(0.1 * (1 - 0.1 * 0.1)));
  CHECK(next_kl_coef(0.1, 50.0, 100, config) == Approx(0.1 * (1 + 0.2 * 0.1)));
  CHECK(next_kl_coef(0.1, -50.0, 100, config) == Approx(0.1 * (1 - 0.2 * 0.1)));
  CHECK(next_kl_coef(0.1, 0.0, 1000000, config) == Approx(0.08));  // never to zero or below
  CHECK_THROWS_WITH(next_kl_coef(0.1, std::numeric_limits<double>::quiet_NaN(), 1, config),
                    Catch::Contains("nan"));
  CHECK_THROWS_WITH(next_kl_coef(0.1, 1.0, -1, config), Catch::Contains("-1 samples"));
}

TEST_CASE(
    "an adaptive entropy bonus grows while entropy is low, shrinks otherwise and acts only then") {
  AlgorithmConfig config;
  config.entropy_step = 0.25;
  CHECK(next_entropy_coef(0.5, 9.0, config) == 0.5);  // no target
  CHECK(acting_entropy_coef(0.5, 9.0, config) == 0.5);
  config.entropy_target = 2.0;
  CHECK(next_entropy_coef(0.5, 2.0, config) == 0.75);
  CHECK(next_entropy_coef(0.5, 2.1, config) == 0.25);
  CHECK(next_entropy_coef(0.125, 2.1, config) == 0.0);
  CHECK(acting_entropy_coef(0.5, 2.0, config) == 0.5);
  CHECK(acting_entropy_coef(0.5, 2.1, config) == 0.0);
  CHECK_THROWS_WITH(next_entropy_coef(0.5, std::numeric_limits<double>::infinity(), config),
                    Catch::Contains("inf"));
}
