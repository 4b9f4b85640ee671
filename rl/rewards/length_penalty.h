// Rewards of completion length.
#pragma once

#include <cstdint>

#include "rl/rewards/reward.h"

namespace ringside::rl {

// Soft overlong punishment, to be added to a reward: 0 up to max_tokens - buffer_tokens, then
// falling linearly to -1 at max_tokens and beyond.
// Throws: std::invalid_argument unless 0 < buffer_tokens <= max_tokens and completion_tokens >= 0.
// Source: DAPO, Yu et al. 2025, eq. 13.
double overlong_penalty(int64_t completion_tokens, int64_t max_tokens, int64_t buffer_tokens);

// -(completion_tokens / max_completion_tokens), clamped to [-1, 0]; 0 if the limit is unknown.
Reward length_reward(const RewardOptions& options);

}  // namespace ringside::rl
