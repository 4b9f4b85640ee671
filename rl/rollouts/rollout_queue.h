// Puts rollouts that arrive in any order together into whole groups and whole steps, keeps out what
// the staleness rule forbids, and finds other prompts for groups that teach nothing. Step t (from
// 1) trains on the slots [(t-1) G, t G), starting from weights of version t-1. A slot is filled by
// the group of the same number or, when that one's rewards are all equal and refill is on, by the
// group one round further on (dynamic sampling, Yu et al. 2025, DAPO). Bounded by the steps that
// staleness allows to be under way times the rounds. Torch-free; not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "rl/rollouts/source_counters.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// group_id = slot + round * kRoundStride: further apart than a run has slots, so that a group's
// number is a place of its own in the data order and tells both.
inline constexpr int64_t kRoundStride = int64_t{1} << 40;

inline int64_t slot_of(int64_t group_id) { return group_id % kRoundStride; }
inline int64_t round_of(int64_t group_id) { return group_id / kRoundStride; }

struct QueueRules {
  int64_t prompts_per_step = 1;  // G
  int64_t group_size = 1;
  int64_t max_staleness =
      0;  // versions a rollout's oldest token may be behind the step that trains on it
  int64_t trainer_term = 0;      // of this trainer start
  int64_t restored_version = 0;  // of the weights that this start began with
  // Term of an earlier start -> the last version of it that the restored weights descend from. Of
  // an term that is neither named nor trainer_term nobody knows what its versions were: its
  // rollouts are stale.
  std::map<int64_t, int64_t> newest_of_term = {};
  int64_t refill_rounds =
      1;  // prompts tried for a slot; the last one's group is kept as it is. 1: no refill
  // What a group's rollouts are compared by, none for one that could not be scored; needed when
  // refill_rounds > 1. What it throws comes out of add() and take().
  std::function<std::optional<double>(const bridge::Rollout&)> total_reward = {};
};

enum class Admission {
  kAccepted,
  kFinished,   // its step is over
  kDuplicate,  // the sample is here already
  kStale,  // too old, or of weights that do not exist: its whole group was dropped and is sampled
           // again
  kWrongSize,  // of a group of another size, as before a restart with another group_size: dropped
               // like a stale one
  kTooEarly,   // beyond the window of steps: must be sampled again when its step comes
  kUnasked,    // of a round that its slot is past, or never comes to
};

// What the bridge is to be told, in this order.
struct QueueRequests {
  std::vector<int64_t> forget;  // groups whose rollouts are worth nothing
  std::vector<int64_t> grant;   // groups to be sampled now
};

class RolloutQueue {
 public:
  // next_step: the first step that will be taken. Throws std::invalid_argument naming the number:
  // rules below 1 (staleness below 0), more rounds than group ids can tell, refill without
  // total_reward.
  RolloutQueue(QueueRules rules, int64_t next_step);

  // The step that trains on a group.
  int64_t step_of(int64_t group_id) const {
    return slot_of(group_id) / rules_.prompts_per_step + 1;
  }
  // The oldest version that a group may be sampled under.
  int64_t min_version(int64_t group_id) const;

  // Weights of this term exist up to `version`. The restored version does from the start.
  void published(int64_t version) { newest_version_ = version; }

  // Versions are counted by (trainer_term, version): one that is newer than its term's last
  // surviving one names weights that do not exist. A rollout of several versions is judged by all
  // of them, so by its oldest token. Whatever the group's other samples were, they go with a stale
  // one or one of another size. Requests follow, see take_requests().
  Admission add(bridge::Rollout rollout);

  // What add() asks for since the last call. Idempotent over a restart: rollouts of a discarded
  // round are not among the forgotten, so a replayed journal leads to the same rounds again.
  QueueRequests take_requests();

  // All rollouts of `step`, slots and samples in order, once they are all here; steps are taken in
  // order.
  std::optional<std::vector<bridge::Rollout>> take(int64_t step);

  // Rollouts held.
  int64_t size() const;
  const QueueRules& rules() const { return rules_; }
  const SourceCounters& counters() const { return counters_; }

 private:
  using Group = std::map<int32_t, bridge::Rollout>;

  bool is_stale(const bridge::Rollout& rollout) const;
  bool is_complete(const Group& group) const {
    return static_cast<int64_t>(group.size()) == rules_.group_size;
  }
  bool has_equal_rewards(const Group& group) const;
  int64_t current_round(int64_t slot) const;
  int64_t current_group(int64_t slot) const { return slot + current_round(slot) * kRoundStride; }
  void drop_group(int64_t group_id);
  void resolve(int64_t slot);
  int64_t erase(int64_t group_id);

  QueueRules rules_;
  int64_t next_step_;
  int64_t newest_version_;
  std::map<int64_t, Group> groups_;
  std::map<int64_t, int64_t> rounds_;  // of the slots that are past round 0
  QueueRequests requests_;
  SourceCounters counters_;
};

}  // namespace ringside::rl
