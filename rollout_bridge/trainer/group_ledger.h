// Ledger of groups: the one owner of a group from its grant to the checkpoint that contains it.
//
// States of a sample: waiting for a worker, assigned to one (both in WorkDivision), delivered.
// States of a group: open, complete (every rollout is here), replaced (it taught nothing, another
// group fills its place), taken for training, consumed. A group that is consumed is forgotten; the
// journal remembers its id.
//
// It decides "exactly once", by rollout id and by (group, sample), and by the GroupPolicy which
// groups are granted for a step, which rollouts are too old, and which groups are replaced. Pure
// state without sockets; the caller passes the time and writes the journal.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "rollout_bridge/base/id_set.h"
#include "rollout_bridge/protocol/codec.h"
#include "rollout_bridge/trainer/counters.h"
#include "rollout_bridge/trainer/group_policy.h"
#include "rollout_bridge/trainer/verdict.h"
#include "rollout_bridge/trainer/work_division.h"

namespace ringside::bridge {

// Where a rollout comes from: a worker, with weights of this trainer start or of an earlier one, or
// the journal.
enum class Origin { kThisStart, kEarlierStart, kJournal };

class GroupLedger {
 public:
  struct Options {
    // Attempts at one sample; after the last, an aborted or failed rollout is delivered as it is.
    int32_t max_attempts = 3;
    int64_t trainer_term = 0;  // of this start
    GroupPolicy policy = {};
  };

  // It knows no group. consumed: groups that nobody wants any more, see Journal::consumed(); it
  // must outlive the ledger. granted_before: groups that earlier trainer starts granted, whose
  // rollouts of those starts count.
  // Throws: std::invalid_argument when a function of the policy is not set.
  GroupLedger(Options options, const IdSet& consumed, IdSet granted_before = {});

  // Queues the samples of a group that are not delivered. Does nothing for a group that is granted.
  // Throws: std::invalid_argument on a negative id, or a size below 1.
  void grant(int64_t group_id);

  // Decision about a validated rollout of `worker`. kJournal: no worker, and no grant is needed.
  // Errors: kInvalidField for another group_size than the group's; kUnknownGroup for a group that
  // its trainer start never granted, or that no step trains on; kStale for versions outside of the
  // group's rule; kNotGranted (this start only) for a sample
  // that was granted to other workers only; kInvalidField for a rollout_id that another sample has,
  // and for a worker's that a stand-in may have; kStale for a stand-in whose group lacks rollouts
  // that were there when it was made.
  Result<Verdict> judge(const Rollout& rollout, const std::string& worker, Origin origin) const;
  // Keeps the message of a rollout that judge() called kNew. Returns the groups to grant now, in
  // place of groups that are complete and teach nothing. Throws: std::invalid_argument when its
  // group_size is not the group's.
  [[nodiscard]] std::vector<int64_t> deliver(const Rollout& rollout, FlatRollout message);
  // Counts the attempt of a rollout that judge() called kRetry and queues its sample again. Does
  // nothing when another worker holds the sample, or when the group is not granted.
  void retry(const Rollout& rollout, const std::string& worker, Origin origin);
  // Queues a sample of `worker` again because its rollout could not be accepted. Returns false and
  // changes nothing when this worker does not hold the sample.
  bool reopen(int64_t group_id, int32_t sample_index, const std::string& worker);

  // The waiting and assigned samples of the granted groups.
  WorkDivision& work() { return work_; }
  const WorkDivision& work() const { return work_; }

  // The groups to grant for the steps up to `last_step` that are not open yet: of each place the
  // group that fills it now, which may be of a later round when rollouts came from a journal.
  std::vector<int64_t> open_steps(int64_t last_step);
  struct Taken {
    std::vector<FlatRollout> rollouts;
    std::set<std::string> images;  // hashes of those that the rollouts name
  };
  // The messages of the rollouts of `step`, ordered by place and sample, once all its groups are
  // complete; else nullopt. Throws: std::invalid_argument when `step` is not the next one.
  std::optional<Taken> take(int64_t step);
  // A sample that the next step need not wait for.
  struct Straggler {
    Rollout stand_in;
    OwedSample owed;
  };
  // The stragglers among the samples that `step` misses, by GroupPolicy: those that a worker was
  // first asked for before `before`, of groups that have enough rollouts. None when `step` is not
  // the next one. Deliver their stand-ins to train without them.
  std::vector<Straggler> stragglers(int64_t step, WorkDivision::Time before) const;
  // Groups to consume because the checkpoint of `step` is on disk: of every place and round.
  std::vector<int64_t> checkpointed(int64_t step);
  // Groups to consume because no restart can use them: they were taken for steps before
  // `next_step`, and hold rollouts of weights newer than the last checkpoint. A restart goes on
  // from that checkpoint, or from a later one, which contains the step.
  std::vector<int64_t> take_unrestorable(int64_t next_step);

  // Forgets a group that is consumed. Returns how many delivered rollouts that nobody took go with
  // it.
  int64_t forget(int64_t group_id);
  // True when a rollout of the group is here.
  bool holds(int64_t group_id) const;
  // True for a consumed group, and for any group of a step that was taken.
  bool is_over(int64_t group_id) const;
  const GroupCounters& counters() const { return counters_; }

 private:
  enum class State : uint8_t { kOpen, kReplaced, kTaken };
  struct Sample {
    std::string rollout_id = {};  // of the rollout that was delivered; "": none was
    bool failed = false;
    std::optional<double> reward = {};
    int64_t newest_version = -1;           // of this trainer start; -1: of an earlier one
    FlatRollout message = {};              // empty when it is not delivered, was taken or dropped
    std::vector<std::string> images = {};  // hashes of those that it names
    bool is_delivered() const { return !rollout_id.empty(); }
  };
  struct Group {
    State state = State::kOpen;
    bool granted = false;
    int32_t held = 0;  // rollouts here
    // Rollouts that were delivered and did not fail.
    int32_t good() const;
    std::vector<Sample> samples;
  };

  GroupRule rule_of(int64_t group_id) const { return options_.policy.rule_of(group_id); }
  void add_rounds(int64_t first_group, std::vector<int64_t>& groups) const;
  Group& open(int64_t group_id, int32_t size);
  // True when a failure of the sample counts as an attempt: it is not a late answer to an earlier
  // grant.
  bool is_try(const Rollout& rollout, const std::string& worker, Origin origin) const;
  Status check_known(const Rollout& rollout, const GroupRule& rule, const Group* group,
                     Origin origin) const;
  // Whether the stand-ins of a start may be delivered: kInvalidField, kStale as judge() says.
  Status check_stand_in(const Rollout& rollout, const Group* group, Origin origin) const;
  bool is_complete(int64_t group_id) const;
  bool teaches_nothing(const Group& group) const;
  int64_t current_group(int64_t first_group) const;
  std::vector<int64_t> replace(int64_t first_group);
  void take_group(int64_t group_id, int64_t step, Taken& out);
  int64_t drop_rollouts(Group& group);

  Options options_;
  WorkDivision work_;
  std::map<int64_t, Group> groups_;
  // Samples delivered under each rollout id, of groups not consumed.
  std::unordered_map<std::string, std::pair<int64_t, int32_t>> sample_of_id_;
  const IdSet& consumed_;
  IdSet granted_before_;
  int64_t next_step_ = 0;                                 // to be taken
  int64_t last_open_step_ = 0;                            // its groups are granted
  int64_t checkpoint_ = 0;                                // last step in a checkpoint
  std::map<int64_t, std::vector<int64_t>> unrestorable_;  // step taken -> its groups
  GroupCounters counters_;
};

}  // namespace ringside::bridge
