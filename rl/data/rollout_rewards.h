// Rewards of a step's rollouts, weighted and shaped as the recipe says. Pure functions. Torch-free.
#pragma once

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

// One total per rollout, in order. A rollout that failed has the mean of the rest of its group, so
// that it does not make a group of equal rewards unequal; 0 if the whole group failed.
// Throws: like total_reward, naming the rollout.
std::vector<double> total_rewards(std::span<const bridge::Rollout> rollouts, const Config& config);

// The rewards that step_advantages reads. Values of a rollout that failed are those of
// total_rewards(); `scored` says that no statistic counts them. masks[r][i]: whether completion
// token i of rollout r is a loss token; table: of the same tokens. The reward of a turn is placed
// at the last loss token at or before the turn's end, or at the sample's first. Without a loss
// token it is added to the sample's total. algorithm.reward scales and clips the total, then adds
// the penalty for overlong completions. Rewards of turns are scaled.
// Throws: as total_rewards(), and as shape_rewards().
SampleRewards sample_rewards(std::span<const bridge::Rollout> rollouts,
                             const std::vector<std::vector<bool>>& masks, const StepColumns& table,
                             const Config& config);

}  // namespace ringside::rl
