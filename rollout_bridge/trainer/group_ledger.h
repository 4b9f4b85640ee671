// The book of groups: which were granted, which of their samples are missing, assigned to a worker
// or delivered. The authority for "exactly once" by rollout id and by (group, sample), and for how
// work is shared among workers. Pure state without sockets; it is told the time. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rollout_bridge/base/id_set.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

enum class Verdict {
  kNew,        // take it
  kDuplicate,  // this rollout, this sample or the whole group is in already
  kRetry,      // aborted or failed, and tries are left: ask for this one sample again
};

// Which trainer start a rollout's weights are of.
enum class Origin { kThisStart, kEarlierStart };

// A worker that work is shared with.
struct WorkerShare {
  std::string worker;
  int64_t version = -1;  // installed
  int64_t capacity = 0;  // samples it can do at once, >= 1
  bool ready = false;    // takes work now; otherwise it will soon, and its share is kept for it
};

// An amount of work.
struct Holding {
  int64_t groups = 0;
  int64_t samples = 0;
};

class GroupLedger {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // max_attempts: tries at one sample before an aborted or failed rollout is delivered as it is.
  explicit GroupLedger(int32_t max_attempts);

  // Queues a group. A group that is queued or complete already is left alone; a consumed one is
  // opened anew. Throws std::invalid_argument on a negative id, a size below 1, or a size that
  // differs from what is known of the group.
  void grant(const GroupGrant& grant);
  // Whether all that is known of the group is rollouts of an earlier start, of another size.
  bool contradicts_unasked(const GroupGrant& grant) const;
  // Groups that earlier starts granted: their rollouts of those starts count.
  void mark_granted_before(const IdSet& granted) { granted_before_ = granted; }

  // What to do with a validated rollout of `worker`. Errors: kInvalidField when its group_size
  // contradicts the grant; kUnknownGroup for a group that its start never granted; kStale for
  // versions below the grant's min_version; of this start also kNotGranted for a sample that others
  // were asked for and this worker never was.
  Result<Verdict> judge(const Rollout& rollout, const std::string& worker, Origin origin) const;
  // Records a rollout that judge() called kNew, from the journal or the wire. Throws
  // std::invalid_argument when its group_size is not the group's.
  void deliver(const Rollout& rollout);
  // False when the sample of this rollout is delivered, or its group is known with another size.
  bool has_place_for(const Rollout& rollout) const;
  // Counts the try of a rollout that judge() called kRetry and puts its sample back in the queue.
  // Nothing for a sample that another worker holds by now, or of a group that is not granted.
  void retry(const Rollout& rollout, const std::string& worker, Origin origin);

  // The same for a sample of `worker` whose rollout could not be taken; false, and nothing changes,
  // for one that this worker does not hold.
  bool reopen(int64_t group_id, int32_t sample_index, const std::string& worker);

  // Shares missing samples out among the ready workers: nobody gets more than its capacity, nor,
  // while others have room, more than its part of all that is in flight or waiting, in proportion
  // to the capacities. Lowest priority number first, then oldest grant; only groups with
  // min_version
  // <= the worker's version. Groups go out whole, but for one that is larger than a capacity, and
  // when fewer wait than workers are ready. At most `room` samples in all.
  std::map<std::string, std::vector<GrantedGroup>> assign(std::span<const WorkerShare> workers,
                                                          int64_t room, Time now);
  // Whether a worker with these weights could be given something.
  bool has_work_for(int64_t version) const;
  // Takes back what `worker` was asked for before `before` and has not delivered.
  Holding release(const std::string& worker, Time before = Time::max());
  // Samples that each worker was asked for before `before` and has not delivered.
  std::map<std::string, int64_t> held_since(Time before) const;

  void consume(int64_t group_id);
  void mark_consumed_before(const IdSet& consumed) { consumed_ = consumed; }
  bool is_consumed(int64_t group_id) const { return consumed_.contains(group_id); }

  // Samples asked for and not delivered, in all and of one worker.
  int64_t in_flight() const { return in_flight_; }
  int64_t in_flight(const std::string& worker) const;
  // True when this very sample is being waited for, so room was kept for it.
  bool expects(const Rollout& rollout) const;

 private:
  enum class State : uint8_t { kMissing, kAssigned, kDelivered };
  using Place = std::pair<int64_t, uint64_t>;  // priority, order of the grant
  struct Sample {
    State state = State::kMissing;
    int32_t attempt = 0;
    uint64_t assignment = 0;         // of an assigned sample
    std::vector<std::string> asked;  // who was ever asked for it
    std::string rollout_id;
  };
  struct Group {
    int32_t size = 0;
    int32_t missing = 0;  // samples neither assigned nor delivered
    int64_t min_version = 0;
    bool granted = false;
    Place place{};  // only of a granted group
    std::vector<Sample> samples;
  };
  // Samples of one group that were handed to one worker together.
  struct Assignment {
    std::string worker;
    int64_t group_id = 0;
    int64_t samples = 0;  // not delivered
    Time since;
  };
  // Granted groups with missing samples that may be sampled under the same versions.
  struct Waiting {
    std::map<Place, int64_t> groups;
    int64_t samples = 0;
  };
  struct Taker;

  // True when a failure of the sample is a try of it, not an echo of a grant that is over.
  bool is_try(const Sample& sample, const Rollout& rollout, const std::string& worker,
              Origin origin) const;
  bool is_held_by(const Sample& sample, const std::string& worker) const;
  Result<Verdict> judge_sample(const Group& group, const Rollout& rollout,
                               const std::string& worker, Origin origin) const;
  Group& open(int64_t group_id, int32_t size);
  void set_state(int64_t group_id, Group& group, Sample& sample, State state);
  void unassign(int64_t group_id, Group& group, Sample& sample);
  void add_waiting(int64_t group_id, const Group& group, int64_t missing);
  int64_t first_waiting(int64_t version) const;
  Holding waiting_for(int64_t version) const;
  std::vector<Taker> takers(std::span<const WorkerShare> workers, int64_t& groups) const;
  GrantedGroup hand_out(int64_t group_id, int64_t count, const std::string& worker, Time now);

  int32_t max_attempts_;
  uint64_t next_order_ = 0;
  uint64_t next_assignment_ = 0;
  int64_t in_flight_ = 0;
  std::map<int64_t, Group> groups_;
  std::map<int64_t, Waiting> waiting_;          // by min_version
  std::map<uint64_t, Assignment> assignments_;  // in order of time
  std::map<std::string, int64_t> in_flight_by_worker_;
  std::unordered_set<std::string> rollout_ids_;  // of groups that are not consumed
  IdSet consumed_;
  IdSet granted_before_;
};

}  // namespace ringside::bridge
