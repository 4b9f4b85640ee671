// A step's rollouts by what becomes of them: greedy ones apart (with estimator remax the last of
// each group, whose reward is the baseline of the others), and those of each adapter. Torch-free.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
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
  std::vector<int64_t> kinds = {};       // of the trained ones' records; empty: 0
};

// Takes the greedy rollouts out of a step's. Without remax there are none. kinds: of the records of
// all rollouts; empty: 0.
// Throws: std::invalid_argument when the rollouts are not whole groups, or not as many as kinds.
TrainedAndGreedy without_greedy(std::vector<bridge::Rollout> rollouts, const Config& config,
                                std::span<const int64_t> kinds = {});

// What each policy of a run learns from, in order: the only one from everything, and with
// lora.adapters each adapter from the groups of its records. Without groups a part is empty.
// Throws: std::invalid_argument for adapters without kinds.
std::vector<TrainedAndGreedy> parts_by_policy(TrainedAndGreedy step, const Config& config);

// The reverse, for a log: whole groups as they were sampled.
std::vector<bridge::Rollout> with_greedy(std::span<const bridge::Rollout> trained,
                                         std::span<const bridge::Rollout> greedy);

}  // namespace ringside::rl
