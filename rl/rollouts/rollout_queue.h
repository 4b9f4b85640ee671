// Queue of rollouts: assembles rollouts that arrive in any order into whole groups and whole steps,
// drops stale ones, and replaces groups with zero reward variance by new prompts (dynamic sampling;
// Yu et al. 2025, DAPO). Step t (from 1) trains on the slots [(t-1) G, t G), starting from weights
// of version t-1. A slot is filled by the group of the same number. If the rewards of that group
// are all equal and refill is on, the slot is filled by the group of the next round. The queue is
// bounded by the number of steps that staleness allows at a time, times the rounds. Torch-free.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "rl/rollouts/source_counters.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// group_id = slot + round * kRoundStride. The stride exceeds the slots of any run, so a group id
// determines slot and round and is a position of its own in the data order.
inline constexpr int64_t kRoundStride = int64_t{1} << 40;

inline int64_t slot_of(int64_t group_id) { return group_id % kRoundStride; }
inline int64_t round_of(int64_t group_id) { return group_id / kRoundStride; }

struct QueueRules {
  int64_t prompts_per_step = 1;  // G
  int64_t group_size = 1;
  int64_t max_staleness = 0;  // largest distance in versions from a rollout's oldest token to the
                              // step that trains on it
  int64_t trainer_term = 0;   // of this start of the trainer
  int64_t restored_version = 0;  // of the weights that this start began with
  // Maps the term of an earlier start to the last of its versions that the restored weights descend
  // from. The versions of a term that is neither listed nor trainer_term are unknown: its rollouts
  // are stale.
  std::map<int64_t, int64_t> newest_of_term = {};
  // Number of prompts tried for a slot; the last one's group is always kept. 1: no refill.
  int64_t refill_rounds = 1;
  // The reward by which a group's rollouts are compared; nullopt for a rollout without a score.
  // Required if refill_rounds > 1. Its exceptions propagate out of add() and take().
  std::function<std::optional<double>(const bridge::Rollout&)> total_reward = {};
};

enum class Admission {
  kAccepted,
  kFinished,   // its step has been taken
  kDuplicate,  // the sample is already in the queue
  // Too old, or from weights that no longer exist. Its whole group is dropped and granted again.
  kStale,
  // Its group_size differs, as after a restart with another group_size. Dropped like a stale one.
  kWrongSize,
  kTooEarly,  // beyond the window of steps: granted again when its step comes
  kUnasked,   // of a round that its slot has passed or never reaches
};

// Requests to the bridge, to be sent in this order.
struct QueueRequests {
  std::vector<int64_t> forget;  // groups whose rollouts are discarded
  std::vector<int64_t> grant;   // groups to grant now
};

class RolloutQueue {
 public:
  // next_step: the first step to be taken.
  // Throws: std::invalid_argument naming the number, for rules below 1 (staleness below 0), for
  // more rounds than group ids can encode, and for refill without total_reward.
  RolloutQueue(QueueRules rules, int64_t next_step);

  // The step that trains on a group.
  int64_t step_of(int64_t group_id) const {
    return slot_of(group_id) / rules_.prompts_per_step + 1;
  }
  // The oldest version that a group may be sampled under.
  int64_t min_version(int64_t group_id) const;

  // Marks the versions of this term up to `version` as existing. The restored version exists from
  // the start.
  void published(int64_t version) { newest_version_ = version; }

  // Adds a rollout. Versions are identified by (trainer_term, version). A version above its term's
  // last surviving one names weights that no longer exist. A rollout of several versions is checked
  // against all of them, so its oldest token decides. A stale rollout, or one with another group
  // size, drops all samples of its group. Call take_requests() afterwards.
  Admission add(bridge::Rollout rollout);

  // The requests of add() since the last call. Idempotent over a restart: rollouts of a discarded
  // round are not forgotten, so a replayed journal leads to the same rounds again.
  QueueRequests take_requests();

  // All rollouts of `step`, ordered by slot and sample, once they are complete; else nullopt. Steps
  // are taken in order.
  std::optional<std::vector<bridge::Rollout>> take(int64_t step);

  // Number of rollouts in the queue.
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
  std::map<int64_t, int64_t> rounds_;  // of the slots beyond round 0
  QueueRequests requests_;
  SourceCounters counters_;
};

}  // namespace ringside::rl
