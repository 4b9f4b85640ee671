// Rewards of a step's rollouts, weighted and shaped as the recipe says. Pure functions. Torch-free.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "rl/algorithm/token_advantages.h"
#include "rl/config/config.h"
#include "rl/rewards/weighted_rewards.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// Whether a rollout has a score. A rollout that failed has neither rewards nor advantages.
bool is_scored(const bridge::Rollout& rollout);

// The weighted sum of a rollout's rewards (weighted_rewards.h) and of the rewards of its turns. 0
// for a rollout with advantages in place of rewards.
// Throws: std::invalid_argument when the rollout has no rewards, or lacks one that the recipe
// names.
double total_reward(const bridge::Rollout& rollout, std::span<const WeightedReward> recipe);

// A rollout's total as algorithm.reward shapes it, with the rewards of its turns.
// Throws: as total_reward().
double shaped_reward(const bridge::Rollout& rollout, std::span<const WeightedReward> recipe,
                     const Config& config);

// What dynamic sampling compares a rollout by (algorithm.dynamic_sampling_by); nullopt for one
// without a score, or without the reward of that name.
// Throws: as total_reward().
std::optional<double> compared_by(const bridge::Rollout& rollout,
                                  std::span<const WeightedReward> recipe, const Config& config);

// The rewards that step_advantages reads. A rollout that failed has the means of the rest of
// its group, 0 if the whole group failed; `scored` says that no statistic counts them. masks[r][i]:
// whether completion token i of rollout r is a loss token; table: of the same tokens. The reward of
// a turn is placed at the last loss token at or before the turn's end, or at the sample's first.
// Without a loss token it is added to the sample's total. algorithm.reward scales and clips the
// total, then adds the penalty for overlong completions. Rewards of turns are scaled. Throws: like
// total_reward, naming the rollout, and as shape_rewards().
SampleRewards sample_rewards(std::span<const bridge::Rollout> rollouts,
                             const std::vector<std::vector<bool>>& masks, const StepColumns& table,
                             const Config& config);

}  // namespace ringside::rl
