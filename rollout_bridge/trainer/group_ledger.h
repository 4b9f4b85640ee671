// Ledger of granted groups and the state of their samples: missing, assigned or delivered.
//
// It decides "exactly once", by rollout id and by (group, sample), and how work is divided among
// workers. Pure state without sockets; the caller passes the time.
//
// Thread safety: none.
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
  kNew,        // accept it
  kDuplicate,  // this rollout, sample or group was delivered already
  kRetry,      // aborted or failed with attempts left: grant this sample again
};

// The trainer start that published a rollout's weights.
enum class Origin { kThisStart, kEarlierStart };

// One worker in the division of work.
struct WorkerShare {
  std::string worker;
  int64_t version = -1;  // installed weight version
  int64_t capacity = 0;  // samples it can generate at once, >= 1
  bool ready = false;    // takes work now; a worker that is not ready keeps its share
};

// An amount of work.
struct Holding {
  int64_t groups = 0;
  int64_t samples = 0;
};

class GroupLedger {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // max_attempts: attempts at one sample; after the last, an aborted or failed rollout is delivered
  // as it is.
  explicit GroupLedger(int32_t max_attempts);

  // Queues a group. Does nothing for a group that is queued or complete. Opens a consumed group
  // again.
  // Throws: std::invalid_argument on a negative id, a size below 1, or a size other than the known
  // size of the group.
  void grant(const GroupGrant& grant);
  // True when the group is known only by rollouts of an earlier start and these have another size.
  bool contradicts_unasked(const GroupGrant& grant) const;
  // Sets the groups granted by earlier trainer starts; rollouts of those starts for these groups
  // count.
  void mark_granted_before(const IdSet& granted) { granted_before_ = granted; }

  // Decision about a validated rollout of `worker`.
  // Errors: kInvalidField when its group_size contradicts the grant; kUnknownGroup for a group that
  // its trainer start never granted; kStale for versions below the grant's min_version; kNotGranted
  // (this start only) for a sample that was granted to other workers only.
  Result<Verdict> judge(const Rollout& rollout, const std::string& worker, Origin origin) const;
  // Records a rollout that judge() called kNew, from the journal or the network.
  // Throws: std::invalid_argument when its group_size is not the group's.
  void deliver(const Rollout& rollout);
  // False when the rollout's sample is delivered already, or its group is known with another size.
  bool has_place_for(const Rollout& rollout) const;
  // Counts the attempt of a rollout that judge() called kRetry and queues its sample again. Does
  // nothing when another worker holds the sample, or when the group is not granted.
  void retry(const Rollout& rollout, const std::string& worker, Origin origin);

  // Queues a sample of `worker` again because its rollout could not be accepted. Returns false and
  // changes nothing when this worker does not hold the sample.
  bool reopen(int64_t group_id, int32_t sample_index, const std::string& worker);

  // Divides missing samples among the ready workers.
  // Limits: no worker gets more than its capacity. While other workers have room, no worker gets
  // more than its share (in proportion to capacity) of the samples in flight and waiting. At most
  // `room` samples in all.
  // Order: lowest priority number first, then oldest grant. Only groups with min_version <= the
  // worker's version.
  // A group goes to one worker, except when it is larger than the capacity, or when fewer groups
  // wait than workers are ready.
  std::map<std::string, std::vector<GrantedGroup>> assign(std::span<const WorkerShare> workers,
                                                          int64_t room, Time now);
  // True when work exists that a worker with these weights may take.
  bool has_work_for(int64_t version) const;
  // Takes back the samples granted to `worker` before `before` and not delivered.
  Holding release(const std::string& worker, Time before = Time::max());
  // Undelivered samples granted before `before`, by worker.
  std::map<std::string, int64_t> held_since(Time before) const;

  void consume(int64_t group_id);
  void mark_consumed_before(const IdSet& consumed) { consumed_ = consumed; }
  bool is_consumed(int64_t group_id) const { return consumed_.contains(group_id); }

  // Samples granted and not delivered, in all and of one worker.
  int64_t in_flight() const { return in_flight_; }
  int64_t in_flight(const std::string& worker) const;
  // True when this sample is assigned and not delivered; room is reserved for it.
  bool expects(const Rollout& rollout) const;

 private:
  enum class State : uint8_t { kMissing, kAssigned, kDelivered };
  using Place = std::pair<int64_t, uint64_t>;  // priority, order of the grant
  struct Sample {
    State state = State::kMissing;
    int32_t attempt = 0;
    uint64_t assignment = 0;         // id of the assignment, while assigned
    std::vector<std::string> asked;  // every worker it was ever granted to
    std::string rollout_id;
  };
  struct Group {
    int32_t size = 0;
    int32_t missing = 0;  // samples that are neither assigned nor delivered
    int64_t min_version = 0;
    bool granted = false;
    Place place{};  // valid while granted
    std::vector<Sample> samples;
  };
  // Samples of one group that were granted to one worker together.
  struct Assignment {
    std::string worker;
    int64_t group_id = 0;
    int64_t samples = 0;  // samples not delivered
    Time since;
  };
  // Granted groups with missing samples and the same min_version.
  struct Waiting {
    std::map<Place, int64_t> groups;
    int64_t samples = 0;
  };
  struct Taker;

  // True when a failure of the sample counts as an attempt: it is not a late answer to an earlier
  // grant.
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
  std::unordered_set<std::string> rollout_ids_;  // of groups not consumed
  IdSet consumed_;
  IdSet granted_before_;
};

}  // namespace ringside::bridge
