// The rewards of a step's rollouts as the recipe weighs and shapes them. Pure functions.
// Torch-free.
#pragma once

#include <span>
#include <vector>

#include "rl/algorithm/token_advantages.h"
#include "rl/config/config.h"
#include "rl/rewards/weighted_rewards.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// Whether a rollout says how good it was: one that failed brings neither rewards nor advantages.
bool is_scored(const bridge::Rollout& rollout);

// The weighted sum of a rollout's rewards (weighted_rewards.h) and of the rewards of its turns.
// Throws std::invalid_argument when the rollout has none, or lacks one that the recipe names. 0 for
// one that brings advantages in place of rewards.
double total_reward(const bridge::Rollout& rollout, std::span<const WeightedReward> recipe);

// One total a rollout, in order. A rollout that failed counts as the mean of the rest of its group,
// so that it moves no one else's advantage; 0 where the whole group failed. Throws like
// total_reward, naming the rollout.
std::vector<double> total_rewards(std::span<const bridge::Rollout> rollouts, const Config& config);

// What step_advantages reads. masks[r][i]: whether completion token i of rollout r carries loss;
// table: of the same tokens. The reward of a turn stands at the last loss token of the turn or
// before it. algorithm.reward scales and clips the total, then takes off its penalty for overlong
// completions; rewards of turns are scaled.
SampleRewards sample_rewards(std::span<const bridge::Rollout> rollouts,
                             const std::vector<std::vector<bool>>& masks, const StepColumns& table,
                             const Config& config);

}  // namespace ringside::rl
