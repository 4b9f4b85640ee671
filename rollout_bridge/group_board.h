// Who samples what: the groups the trainer has granted, which samples of them are asked for, by
// whom, and which have arrived. The authority for "exactly once" by rollout id and by (group,
// sample). Pure state without sockets or clocks; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rollout_bridge/id_set.h"
#include "rollout_bridge/schema.h"

namespace ringside::bridge {

enum class Verdict {
  kNew,        // take it
  kDuplicate,  // this rollout, this sample or the whole group is in already
  kRetry,      // aborted or failed, and tries are left: ask for this one sample again
};

// Which trainer start a rollout's weights are of. What was granted before this one, nobody knows.
enum class Origin { kThisStart, kEarlierStart };

class GroupBoard {
 public:
  // max_attempts: tries at one sample before an aborted or failed rollout is delivered as it is.
  explicit GroupBoard(int32_t max_attempts);

  // Queues a group. A group that is queued or complete already is left alone; a consumed one is
  // opened anew. Throws std::invalid_argument on a negative id, a size below 1, or a size that
  // differs from what is known of the group.
  void grant(const GroupGrant& grant);
  // Whether all that is known of the group is rollouts of an earlier start, of another size.
  bool contradicts_unasked(const GroupGrant& grant) const;

  // What to do with a validated rollout of `worker`. Errors: kInvalidField when its group_size
  // contradicts the grant; of this start also kUnknownGroup for a group that is not granted, and
  // kNotGranted for a sample that others were asked for and this worker never was.
  Result<Verdict> judge(const Rollout& rollout, const std::string& worker, Origin origin) const;
  // Records a rollout that judge() called kNew, from the journal or the wire. Throws
  // std::invalid_argument when its group_size is not the group's.
  void deliver(const Rollout& rollout);
  // Counts the try of a rollout that judge() called kRetry and puts its sample back in the queue.
  // Nothing for a sample that another worker holds by now, or of a group that is not granted.
  void retry(const Rollout& rollout, const std::string& worker, Origin origin);

  // The same for a sample of `worker` whose rollout could not be taken; false, and nothing changes,
  // for one that this worker does not hold.
  bool give_back(int64_t group_id, int32_t sample_index, const std::string& worker);

  // Hands out missing samples to `worker`, lowest priority number and then oldest grant first,
  // whole groups (their missing part) while they fit into `free_samples`; a worker with nothing in
  // flight gets one group of any size that fits into `room`. Only groups with min_version <=
  // version.
  std::vector<GrantedGroup> assign(const std::string& worker, int64_t version, int64_t free_samples,
                                   int64_t room);
  // Takes back what `worker` holds; returns the number of groups that are waiting again.
  int64_t release(const std::string& worker);

  void consume(int64_t group_id);
  void mark_consumed_before(const IdSet& consumed) { consumed_ = consumed; }
  bool is_consumed(int64_t group_id) const { return consumed_.contains(group_id); }

  // Samples asked for and not delivered, in all and of one worker.
  int64_t in_flight() const { return in_flight_; }
  int64_t in_flight(const std::string& worker) const;
  // True when this very sample is being waited for, so room was kept for it.
  bool expects(const Rollout& rollout) const;

 private:
  enum class State { kMissing, kAssigned, kDelivered };
  using Place = std::pair<int64_t, uint64_t>;  // priority, order of the grant
  struct Sample {
    State state = State::kMissing;
    int32_t attempt = 0;
    std::string worker;              // who holds it
    std::vector<std::string> asked;  // who was ever asked for it
    std::string rollout_id;
  };
  struct Group {
    int32_t size = 0;
    int64_t min_version = 0;
    bool granted = false;
    Place place{};  // in waiting_; only of a granted group
    std::vector<Sample> samples;
  };

  // True when a failure of the sample is a try of it, not an echo of a grant that is over.
  static bool is_try(const Sample& sample, const Rollout& rollout, const std::string& worker,
                     Origin origin);
  Group& open(int64_t group_id, int32_t size);
  void unassign(Sample& sample);
  void queue_if_missing(int64_t group_id, Group& group);
  GrantedGroup hand_out(int64_t group_id, Group& group, const std::string& worker);

  int32_t max_attempts_;
  uint64_t next_order_ = 0;
  int64_t in_flight_ = 0;
  std::map<int64_t, Group> groups_;
  std::map<Place, int64_t> waiting_;  // -> granted group with missing samples
  std::map<std::string, int64_t> in_flight_by_worker_;
  std::unordered_set<std::string> rollout_ids_;  // of groups that are not consumed
  IdSet consumed_;
};

}  // namespace ringside::bridge
