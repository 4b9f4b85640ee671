// Bound of log-ratios and facts about KL estimators that the host's and the device's formulas
// share. Torch-free.
#pragma once

#include "rl/config/enums.h"

namespace ringside::rl {

// Log-ratios are clamped to -20 .. 20 before exp(), so that one outlier cannot overflow: those of
// the losses, of corrections and their statistics, and of a bounded k3.
// Source: verl, core_algos.py and rollout_corr_helper.py.
inline constexpr double kMaxLogRatio = 20.0;

// Whether the estimator's value is k3's, so that algorithm.k3_bound bounds it.
constexpr bool has_k3_value(KlEstimator estimator) {
  return estimator == KlEstimator::kK3 || estimator == KlEstimator::kK3Straight ||
         estimator == KlEstimator::kK3Score || estimator == KlEstimator::kK3Unbiased;
}

}  // namespace ringside::rl
