// Adaptive coefficients of the KL penalty and the entropy bonus: pure functions from the current
// value and an observation to the next value. The caller holds the state, one double each, and
// saves it in checkpoints. Torch-free.
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "rl/config/config.h"

namespace ringside::rl {

// The KL coefficient of the next step: coef * (1 + clip(kl / kl_target - 1, -0.2, 0.2) * samples /
// kl_horizon). kl: the step's mean KL per token. samples: number of samples it was measured on;
// counts above kl_horizon are clamped to kl_horizon, so one step changes the coefficient by at most
// a fifth. Unchanged if config.kl_target is 0.
// Throws: std::invalid_argument for a kl that is not finite or samples below 0.
// Source: Ziegler et al. 2019, section 2.2; verl's AdaptiveKLController.
double next_kl_coef(double coef, double kl, int64_t samples, const AlgorithmConfig& config);

// The coefficient of the entropy bonus after an optimizer step: increased by entropy_step if the
// entropy was at most entropy_target, else decreased by entropy_step; never negative. Unchanged if
// config.entropy_target is 0.
// Throws: std::invalid_argument for an entropy that is not finite.
// Source: Skywork-OR1, He et al. 2025, section 4; TRL.
double next_entropy_coef(double coef, double entropy, const AlgorithmConfig& config);

// The factor of the entropy in this optimizer step's loss: coef, or 0 while the entropy is above a
// target that is set.
// Source: as next_entropy_coef().
double acting_entropy_coef(double coef, double entropy, const AlgorithmConfig& config);

}  // namespace ringside::rl
