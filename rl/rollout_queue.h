// Puts rollouts that arrive in any order together into whole groups and whole steps, and keeps out what the staleness rule
// forbids. Step t (from 1) trains on the groups [(t-1) G, t G), starting from weights of version t-1. Bounded by the
// steps that staleness allows to be under way. Torch-free; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "rollout_bridge/schema.h"

namespace ringside::rl {

struct QueueRules {
  int64_t prompts_per_step = 1;  // G
  int64_t group_size = 1;
  int64_t max_staleness = 0;     // versions a rollout may be behind the step that trains on it
  int64_t run_epoch = 0;         // of this trainer start
  int64_t restored_version = 0;  // of the weights that this start began with
};

enum class Admission {
  kAccepted,
  kFinished,   // its step is over: nothing to do
  kDuplicate,  // the sample is here already
  kStale,      // must be sampled again: too old, or of weights that the restored run never had
  kTooEarly,   // beyond the window of steps: must be sampled again when its step comes
};

class RolloutQueue {
 public:
  // next_step: the first step that will be taken.
  RolloutQueue(const QueueRules& rules, int64_t next_step) : rules_(rules), next_step_(next_step) {}

  // The step that trains on a group.
  int64_t step_of(int64_t group_id) const { return group_id / rules_.prompts_per_step + 1; }

  // A rollout of an earlier run_epoch counts only when the restored weights had reached its version: versions above that
  // name weights that no longer exist.
  Admission add(bridge::Rollout rollout);

  // All rollouts of `step`, groups and samples in order, once they are all here; steps are taken in order.
  std::optional<std::vector<bridge::Rollout>> take(int64_t step);

  // Rollouts held.
  int64_t size() const;

 private:
  bool is_stale(const bridge::Rollout& rollout) const;

  QueueRules rules_;
  int64_t next_step_;
  std::map<int64_t, std::map<int32_t, bridge::Rollout>> groups_;
};

}  // namespace ringside::rl
