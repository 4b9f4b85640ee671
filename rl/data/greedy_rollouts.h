// Greedy rollouts of a step: with estimator remax the last of each group, whose reward is the
// baseline of the others. Torch-free.
// Thread safety: pure functions.
#pragma once

#include <span>
#include <vector>

#include "rl/config/config.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// Whether the rollout is its group's greedy one.
bool is_greedy(const bridge::Rollout& rollout, const Config& config);

// A step's rollouts, apart.
struct TrainedAndGreedy {
  std::vector<bridge::Rollout> trained;  // whole groups of rollout.group_size
  std::vector<bridge::Rollout> greedy;   // one of each group, or none at all
};

// Takes the greedy rollouts out of a step's. Without remax there are none.
// Throws: std::invalid_argument when the rollouts are not whole groups.
TrainedAndGreedy without_greedy(std::vector<bridge::Rollout> rollouts, const Config& config);

// The reverse, for a log: whole groups as they were sampled.
std::vector<bridge::Rollout> with_greedy(std::span<const bridge::Rollout> trained,
                                         std::span<const bridge::Rollout> greedy);

}  // namespace ringside::rl
