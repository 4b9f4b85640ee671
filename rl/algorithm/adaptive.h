// Coefficients that follow what they are meant to hold: pure functions from the present value and
// an observation to the next value. Torch-free, thread-safe. The state is one double each, which
// the caller keeps and saves in checkpoints.
#pragma once

#include <cstdint>

#include "rl/config/config.h"

namespace ringside::rl {

// The KL coefficient of the next step: coef * (1 + clip(kl / kl_target - 1, -0.2, 0.2) * samples /
// kl_horizon) (Ziegler et al. 2019, section 2.2; verl's AdaptiveKLController). kl: the step's mean
// KL per token; samples: those it was observed on, where more than kl_horizon count as that many,
// so that no step moves the coefficient by more than a fifth. Unchanged where config.kl_target is
// 0. Throws std::invalid_argument for a kl that is not finite or samples below 0.
double next_kl_coef(double coef, double kl, int64_t samples, const AlgorithmConfig& config);

// The coefficient of the entropy bonus after an optimizer step: entropy_step more where the entropy
// was at most entropy_target, entropy_step less otherwise, never negative (Skywork-OR1, He et al.
// 2025, section 4; TRL). Unchanged where config.entropy_target is 0. Throws std::invalid_argument
// for an entropy that is not finite.
double next_entropy_coef(double coef, double entropy, const AlgorithmConfig& config);

// What multiplies the entropy in this optimizer step's loss: coef, and 0 while the entropy is above
// a target that is set.
double acting_entropy_coef(double coef, double entropy, const AlgorithmConfig& config);

}  // namespace ringside::rl
