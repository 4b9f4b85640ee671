// Policy of training steps: the groups of a step, staleness, and dynamic sampling by refill (Yu et
// al. 2025, DAPO), which replaces groups whose rewards are all equal by new prompts.
//
// Step t (from 1) trains on the slots [(t-1) G, t G) and starts from weights of version t-1. A slot
// is filled by the group of the same number. If the rewards of that group are all equal and refill
// is on, the slot is filled by the group of the next round. With a curriculum each slot is filled
// by the group that the curriculum chose for it. Torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "rl/data/group_prompts.h"
#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/trainer/group_policy.h"

namespace ringside::rl {

struct StepRules {
  int64_t prompts_per_step = 1;  // G
  int64_t group_size = 1;
  // Largest distance in versions from a rollout's oldest token to the step that trains on it.
  int64_t max_staleness = 0;
  int64_t first_step = 1;  // of this start of the trainer
  // Number of prompts tried for a slot; the last one's group is always used. 1: no refill.
  int64_t refill_rounds = 1;
  // The groups of a step where a curriculum chooses them, one for each slot in order; each id is
  // slot + prompt * kRoundStride. Not set: the slots themselves. Refill and this exclude each
  // other. It runs on the bridge's thread.
  std::function<std::vector<int64_t>(int64_t step)> chosen_groups = {};
  // The reward by which a group's rollouts are compared; nullopt for a rollout without a score.
  // Required if refill_rounds > 1. A pure function, because the bridge's thread calls it and calls
  // it again for the same rollouts after a restart. It must not throw.
  std::function<std::optional<double>(const bridge::Rollout&)> total_reward = {};
  // As in GroupPolicy. 0: all samples are waited for.
  std::chrono::milliseconds straggler_timeout{0};
  int64_t min_group_size = 2;
};

// Samples without a score make no difference in a group; a group without any score teaches nothing.
// Throws: std::invalid_argument naming the number, for rules below 1 (staleness below 0), for more
// rounds than group ids can encode, for refill without total_reward, and for a straggler_timeout
// whose min_group_size is below 2 or leaves no sample out.
// Thread safety: the policy's functions may run on any thread, if total_reward may.
bridge::GroupPolicy step_policy(StepRules rules);

}  // namespace ringside::rl
