// Division of granted samples among workers: which wait for a worker, and which worker holds which.
// A sample leaves when its rollout is delivered.
//
// Pure state without sockets; the caller passes the time.
//
// Thread safety: none.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// One worker in the division of work.
struct WorkerShare {
  std::string worker;
  int64_t version = -1;    // installed weight version
  int64_t capacity = 0;    // samples it can generate at once, >= 1
  bool ready = false;      // takes work now; a worker that is not ready keeps its share
  bool evaluates = false;  // has the held-out prompts
  bool on_trial = false;   // gets one sample at a time
};

// An amount of work.
struct Holding {
  int64_t groups = 0;
  int64_t samples = 0;
};

// A sample that a worker was asked for and that has not come.
struct OwedSample {
  int32_t index = 0;
  std::string holder = {};                           // "": it waits for a worker
  std::chrono::steady_clock::time_point since = {};  // the holder has it
};

// Samples that an idle worker makes in place of a late one.
struct Takeover {
  std::string from;
  std::string to;
  std::vector<Grant> groups;
};

class WorkDivision {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Span = std::chrono::steady_clock::duration;

  // Queues the grant's samples. A lower priority number is granted first, regardless of age.
  void add(Grant grant, int64_t priority);
  // Notes how long `worker` had the sample, if it holds it. Call before finish().
  void answered(int64_t group_id, int32_t sample_index, const std::string& worker, Time now);
  // Removes a sample whose rollout has arrived, or a whole group. Does nothing for one that is not
  // here.
  void finish(int64_t group_id, int32_t sample_index);
  void remove(int64_t group_id);
  // Takes the sample from the worker that holds it, if any, counts an attempt and queues it again.
  void retry(int64_t group_id, int32_t sample_index);

  // True when a worker, or this worker, holds the sample.
  bool is_assigned(int64_t group_id, int32_t sample_index) const;
  bool is_held_by(int64_t group_id, int32_t sample_index, const std::string& worker) const;
  // True when a sample that is here was ever assigned to the worker.
  bool was_assigned_to(int64_t group_id, int32_t sample_index, const std::string& worker) const;
  // Attempts at the sample that have ended; 0 for a sample that is not here.
  int32_t attempt(int64_t group_id, int32_t sample_index) const;

  // Divides missing samples among the ready workers.
  // Limits: no worker gets more than its capacity, and one on trial no more than one sample. While
  // other workers have room, no worker gets more than its share of the samples in flight and
  // waiting. Shares are in proportion to capacity, and smaller for workers from which late samples
  // were taken over. At most `room` samples in all.
  // Order: lowest priority number first, then oldest grant. Only groups with min_version <= the
  // worker's version. Groups of held-out prompts go to workers that have these.
  // A group goes to one worker, except when it is larger than the capacity, or when fewer groups
  // wait than workers are ready. Of equally loaded workers the one that was granted something
  // longest ago comes first.
  std::map<std::string, std::vector<Grant>> assign(std::span<const WorkerShare> workers,
                                                   int64_t room, Time now);
  // Gives half of the late samples of another worker to each idle worker that nothing waits for,
  // the latest granted first. A sample is late for an idle worker when it has been assigned for
  // more than twice as long as that worker lately needed for any sample. The worker that loses
  // them gets smaller shares, which grow again with the samples that it delivers.
  std::vector<Takeover> take_over(std::span<const WorkerShare> workers, Time now);
  // True when work exists that a worker with these weights may take.
  bool has_work_for(int64_t version, bool evaluates = false) const;
  // Takes back all samples of a worker whose session has ended, and forgets its pace.
  Holding leave(const std::string& worker);
  // Takes back the samples assigned to `worker` before `before`.
  Holding release(const std::string& worker, Time before = Time::max());
  // Samples assigned before `before`, by worker.
  std::map<std::string, int64_t> held_since(Time before) const;

  // The samples of a group that any worker was first asked for before `before`, by index.
  std::vector<OwedSample> owed(int64_t group_id, Time before) const;

  // Assigned samples, in all and of one worker.
  int64_t in_flight() const { return in_flight_; }
  int64_t in_flight(const std::string& worker) const;

 private:
  using Place = std::pair<int64_t, uint64_t>;  // priority, order of the grant
  struct Sample {
    int32_t index = 0;
    int32_t attempt = 0;
    uint64_t assignment = 0;              // its number; 0: the sample waits for a worker
    std::vector<std::string> asked = {};  // every worker it was ever assigned to
    Time first_asked{};                   // when the first of these was
  };
  // What a worker needs in order to take a group.
  struct Needs {
    int64_t min_version = 0;
    bool held_out = false;  // the held-out prompts
    auto operator<=>(const Needs&) const = default;
    bool met_by(int64_t version, bool evaluates) const {
      return min_version <= version && (evaluates || !held_out);
    }
  };
  struct Group {
    Grant grant;
    Place place{};
    int64_t missing = 0;          // samples that wait for a worker
    std::vector<Sample> samples;  // not delivered, by index
    Needs needs() const { return {grant.min_version, grant.held_out >= 0}; }
  };
  // Samples of one group that were assigned to one worker together.
  struct Assignment {
    std::string worker;
    int64_t group_id = 0;
    int64_t samples = 0;  // that it still holds
    Time since;
  };
  // Groups with missing samples and the same needs.
  struct Waiting {
    std::map<Place, int64_t> groups;
    int64_t samples = 0;
  };
  // What is known of a worker's speed.
  struct Pace {
    Span longest{};    // lately from the assignment of a sample to its rollout; 0: unknown
    double share = 1;  // factor of its share, in (0, 1]
    Time last_cut{};   // of its share
    uint64_t last_assigned = 0;  // number of its last assignment
  };
  struct Taker;
  // Late samples of one worker, in order of their assignment.
  using Late = std::vector<std::pair<int64_t, int32_t>>;

  const Sample* find(int64_t group_id, int32_t sample_index) const;
  Sample* find(int64_t group_id, int32_t sample_index);
  void change_missing(Group& group, int64_t by);
  void take_from_worker(Sample& sample);
  void requeue(Group& group, Sample& sample);
  int64_t first_waiting(int64_t version, bool evaluates) const;
  Holding waiting_for(int64_t version, bool evaluates) const;
  std::vector<Taker> takers(std::span<const WorkerShare> workers, int64_t& groups) const;
  Grant hand_out(Group& group, int64_t count, const std::string& worker, Time now);
  Grant assign_samples(Group& group, std::vector<int32_t> samples, const std::string& worker,
                       Time now);
  std::pair<std::string, Late> latest_holder(const WorkerShare& idle, Time before) const;
  double weight(const WorkerShare& worker) const;
  void cut_share(const std::string& worker, Time assigned, Time now);

  uint64_t next_order_ = 0;
  uint64_t next_assignment_ = 0;
  int64_t in_flight_ = 0;
  std::map<int64_t, Group> groups_;  // with a sample
  std::map<Needs, Waiting> waiting_;
  std::map<uint64_t, Assignment> assignments_;  // in order of time
  std::map<std::string, int64_t> in_flight_by_worker_;
  std::map<std::string, Pace> paces_;  // of workers with a session
};

}  // namespace ringside::bridge
