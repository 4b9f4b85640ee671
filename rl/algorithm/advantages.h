// Group advantages: how much better a completion scored than the others of its prompt. Pure functions, torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// rewards: [G * group_size], groups consecutive. Per group A = (R - mean) / (std + eps), or A = R - mean when
// config.std is none (Dr. GRPO, Liu et al. 2025). The standard deviation is unbiased or not as config says; a group of
// one has advantage 0. Source: GRPO, Shao et al. 2024 (DeepSeekMath), eq. of section 4.1; eps as in TRL.
// Throws std::invalid_argument when the rewards are not whole groups.
std::vector<double> group_advantages(std::span<const double> rewards, int64_t group_size,
                                     const AdvantageConfig& config);

// Statistics of one step's rewards, named as TRL logs them.
struct RewardStatistics {
  double reward = 0.0;                // mean over samples
  double reward_std = 0.0;            // mean over groups of the unbiased standard deviation within the group
  double frac_reward_zero_std = 0.0;  // share of groups whose rewards are all equal
};
RewardStatistics reward_statistics(std::span<const double> rewards, int64_t group_size);

}  // namespace ringside::rl
