// Policy of a trainer that trains by steps: which groups a step trains on, which rollouts are too
// old for it, and which group replaces one that teaches nothing.
//
// A step has a fixed number of places. Each place is filled by one group: by its first one, or,
// when that one is complete and teaches nothing, by the one of the next round, and so on.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// Half-open range of group ids.
struct GroupRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// All methods are pure functions: the same arguments give the same answer, also after a restart.
// GroupLedger calls them before a rollout is journalled and when a journal is replayed.
// Throws: nothing; an exception ends the endpoint's thread (see TrainerEndpoint).
// Thread safety: every method. They run on the endpoint's thread and on its callers', under the
// endpoint's mutex, so they must not call the endpoint and must not wait.
class GroupPolicy {
 public:
  virtual ~GroupPolicy() = default;

  // The first step that this start of the trainer trains on. Earlier steps are in its checkpoint.
  virtual int64_t first_step() const = 0;
  // The step, from 1, that trains on the group. 0 when no step does.
  virtual int64_t step_of(int64_t group_id) const = 0;
  // The first groups of the step's places, in the order in which they are trained on.
  virtual GroupRange first_groups(int64_t step) const = 0;
  // The first group of the place that the group may fill.
  virtual int64_t first_group(int64_t group_id) const = 0;
  // The group that replaces this one if it teaches nothing. nullopt: it is used as it is.
  virtual std::optional<int64_t> next_round(int64_t group_id) const = 0;
  // True when a complete group gives no gradient, for example because all its rewards are equal.
  virtual bool teaches_nothing(std::span<const Rollout* const> group) const = 0;

  // Samples of every group.
  virtual int32_t group_size() const = 0;
  // The oldest version that the group may be sampled under.
  virtual int64_t min_version(int64_t group_id) const = 0;
  // True when one of the rollout's versions is too old for its step, or newer than the weights that
  // the step starts from.
  virtual bool is_stale(const Rollout& rollout) const = 0;
};

}  // namespace ringside::bridge
