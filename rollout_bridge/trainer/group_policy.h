// Rules of a trainer's groups: which groups a step trains on, which rollouts are too old for it,
// and which group replaces one that teaches nothing.
//
// A step has a fixed number of places. Each place is filled by one group: by its first one, or,
// when that one is complete and teaches nothing, by the one of the next round, and so on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// What holds for one group.
struct GroupRule {
  int64_t step = 0;                        // that trains on it, from 1; 0: no step does
  int64_t first_group = -1;                // of the place that it may fill
  std::optional<int64_t> next_round = {};  // replaces it if it teaches nothing; nullopt: none
  int32_t group_size = 0;                  // samples
  int64_t min_version = 0;                 // oldest and newest weights that a token of it may be
  int64_t max_version = 0;                 // sampled under
};

// All functions are set and pure: the same arguments give the same answer, also after a restart.
// GroupLedger calls them before a rollout is journalled and when a journal is replayed.
// Throws: nothing; an exception ends the endpoint's thread (see TrainerEndpoint).
// Thread safety: they run on the endpoint's thread and on its callers', under the endpoint's mutex,
// so they must not call the endpoint and must not wait.
struct GroupPolicy {
  // The first step that this start of the trainer trains on. Earlier steps are in its checkpoint.
  int64_t first_step = 1;
  std::function<GroupRule(int64_t group_id)> rule_of = {};
  // The first groups of the step's places, in the order in which they are trained on. Asked for
  // steps from the last checkpoint's on, up to the last one that is open.
  std::function<std::vector<int64_t>(int64_t step)> first_groups = {};
  // By which the rollouts of a group are compared; nullopt for a rollout without a score.
  std::function<std::optional<double>(const Rollout& rollout)> reward_of = {};
  // Whether a complete group of these rewards gives no gradient, as when all are equal.
  std::function<bool(std::span<const std::optional<double>> rewards)> teaches_nothing = {};
  // A sample that a worker was first asked for this long ago is a straggler. When a step is waited
  // for, each of its groups is trained without its stragglers, as if they had failed, once
  // min_group_size of its rollouts are here that did not fail. 0: all samples are waited for.
  std::chrono::milliseconds straggler_timeout{0};
  int32_t min_group_size = 2;
};

}  // namespace ringside::bridge
