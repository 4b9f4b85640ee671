// Advantages with one value per sample, from comparing the rewards of a prompt's group. Torch-free.
// Shapes: rewards [G * group_size], groups consecutive. scored [G * group_size], or empty = all:
// samples without a score (the worker failed) count in no statistic, n is the number of the others,
// and their advantage is 0.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// The advantage of each sample. By config.estimator, with n, mean, r_max and r_second of the
// group:
//   group_mean (R - mean) / divisor
//              (Shao et al. 2024, DeepSeekMath, section 4.1)
//   rloo       (R - mean of the others) / divisor
//              (Kool et al. 2019, Ahmadian et al. 2024)
//   pass_at_k  (r_max - r_second) / divisor for the best of the group, 0 for the others
//              (verl's grpo_passk)
//   max_rl     (R - mean) / mean, and 0 unless the mean is above 0 (prime-rl's max_rl)
//   opo        R - sum of n_i R_i / sum of n_i, with n_i = loss_tokens of the group's samples: the
//              baseline of least variance where a gradient's square grows with the length
//              (Hao et al. 2025, OPO; verl's opo). 0 for a group without a loss token
// The divisor by config.std, with standard deviations over n - 1 (config.unbiased) or n:
//   group          the group's + eps (GRPO; with rloo: PipelineRL)
//   batch          that of all rewards + eps (TRL's scale_rewards "batch")
//   leave_one_out  that of the others + eps, and 1 where it is exactly 0 (NeMo-RL, with rloo)
//   none           1 (Dr. GRPO, Liu et al. 2025; RLOO)
// The advantages of a group of equal rewards, or of a group of one, are exactly 0.
// With config.gpg_scale all are multiplied by the samples that have a score / those of them whose
// reward is not 0, at least 1 (Chu et al. 2025, GPG; verl's gpg).
// loss_tokens: of each sample, [G * group_size]; read by opo alone.
// Throws: std::invalid_argument when the rewards are not whole groups, for estimators that do not
// use one reward per sample (gdpo, remax, optimal_token_baseline, reinforce, gae, given), for
// pass_at_k, max_rl and opo with std batch or leave_one_out, and for opo without a length of each
// sample.
std::vector<double> group_advantages(std::span<const double> rewards, int64_t group_size,
                                     const AdvantageConfig& config,
                                     const std::vector<bool>& scored = {},
                                     std::span<const int64_t> loss_tokens = {});

// GDPO: every reward is normalised on its own within its group, (R - mean) / (std + eps), or R -
// mean with std none. Their weighted sum is then normalised over all samples, (x - mean) / (std +
// eps). (verl normalises the sum over tokens: gdpo with advantage.whiten tokens.) Unless std is
// none, the scale of a reward therefore has no influence; its weight has.
// Shapes: rewards [R][B] before weights, weights [R].
// Throws: std::invalid_argument without a reward, for std batch and leave_one_out, and when lengths
// differ or are not whole groups.
// Source: Liu et al. 2026; TRL's normalize_then_sum, verl's gdpo.
std::vector<double> gdpo_advantages(std::span<const std::vector<double>> rewards,
                                    std::span<const double> weights, int64_t group_size,
                                    const AdvantageConfig& config,
                                    const std::vector<bool>& scored = {});

// For each group, [G]: whether its rewards are all equal, so that all its advantages are 0.
// Throws: as above.
std::vector<bool> groups_without_variance(std::span<const double> rewards, int64_t group_size,
                                          const std::vector<bool>& scored = {});

// Statistics of one step's rewards, named as TRL logs them.
struct RewardStatistics {
  double reward = 0.0;      // mean over samples
  double reward_std = 0.0;  // mean over groups of the unbiased standard deviation within the group
  double frac_reward_zero_std = 0.0;  // share of groups whose rewards are all equal
};
// rewards: of whole groups, one group after another.
// All 0 without a reward.
// Throws: as group_advantages() when the rewards are not whole groups.
RewardStatistics reward_statistics(std::span<const double> rewards, int64_t group_size,
                                   const std::vector<bool>& scored = {});

}  // namespace ringside::rl
