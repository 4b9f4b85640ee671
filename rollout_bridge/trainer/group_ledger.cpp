#include "rollout_bridge/trainer/group_ledger.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ringside::bridge {
namespace {

int64_t oldest_version(const Rollout& rollout) {
  int64_t oldest = INT64_MAX;
  for (const VersionSpan& span : rollout.versions) {
    oldest = std::min(oldest, span.version);
  }
  return oldest;
}

Error refused(Reason reason, const Rollout& rollout, const std::string& what) {
  return {reason, "rollout '" + rollout.rollout_id + "': " + what};
}

std::string name_of(int64_t group_id) { return "group " + std::to_string(group_id); }

GroupGrant grant_of(const GroupPolicy& policy, int64_t group_id) {
  // Groups of earlier steps are assigned first, even if they are granted later.
  return {group_id, policy.group_size(), policy.min_version(group_id), policy.step_of(group_id)};
}

// Every group that may fill a place, granted or not.
void add_rounds(const GroupPolicy& policy, int64_t first_group, std::vector<int64_t>& groups) {
  for (std::optional<int64_t> id = first_group; id; id = policy.next_round(*id)) {
    groups.push_back(*id);
  }
}

}  // namespace

GroupLedger::GroupLedger(Options options) : options_(std::move(options)) {
  if (!options_.policy) {
    return;
  }
  next_step_ = options_.policy->first_step();
  last_open_step_ = checkpoint_ = next_step_ - 1;
}

void GroupLedger::restore(const IdSet& granted, const IdSet& consumed) {
  granted_before_ = granted;
  consumed_ = consumed;
}

const GroupPolicy& GroupLedger::policy() const {
  if (!options_.policy) {
    throw std::logic_error("the ledger has no GroupPolicy, so it has no steps");
  }
  return *options_.policy;
}

GroupLedger::Group& GroupLedger::open(int64_t group_id, int32_t size) {
  Group& group = groups_[group_id];
  if (group.samples.empty()) {
    group.samples.resize(static_cast<size_t>(size));
  }
  if (group.samples.size() != static_cast<size_t>(size)) {
    throw std::invalid_argument(name_of(group_id) + " of " + std::to_string(size) +
                                " samples, it has " + std::to_string(group.samples.size()));
  }
  return group;
}

void GroupLedger::grant(const GroupGrant& grant) {
  if (grant.group_id < 0 || grant.group_size < 1) {
    throw std::invalid_argument("grant of group " + std::to_string(grant.group_id) + " with " +
                                std::to_string(grant.group_size) +
                                " samples: expected an id >= 0 and a size >= 1");
  }
  consumed_.erase(grant.group_id);
  Group& group = open(grant.group_id, grant.group_size);
  if (std::exchange(group.granted, true)) {
    return;
  }
  group.min_version = grant.min_version;
  std::vector<bool> done;
  for (const Sample& sample : group.samples) {
    done.push_back(sample.delivered);
  }
  work_.add(grant, done);
}

bool GroupLedger::is_over(int64_t group_id) const {
  if (consumed_.contains(group_id)) {
    return true;
  }
  if (!options_.policy) {
    return false;
  }
  const int64_t step = options_.policy->step_of(group_id);
  return step != 0 && step < next_step_;
}

bool GroupLedger::is_try(const Rollout& rollout, const std::string& worker, Origin origin) const {
  const int64_t group = rollout.group_id;
  const int32_t sample = rollout.sample_index;
  if (work_.is_assigned(group, sample)) {
    return work_.is_held_by(group, sample, worker);
  }
  // A rollout of an earlier grant is no attempt. One of a worker that was given up is.
  return origin == Origin::kThisStart && rollout.attempt == work_.attempt(group, sample);
}

Status GroupLedger::check_known(const Rollout& rollout, const Group* group, Origin origin) const {
  const int64_t id = rollout.group_id;
  if (options_.policy && options_.policy->step_of(id) == 0) {
    return refused(Reason::kUnknownGroup, rollout, "no step trains on " + name_of(id));
  }
  const bool known = origin == Origin::kJournal || (group != nullptr && group->granted) ||
                     (origin == Origin::kEarlierStart && granted_before_.contains(id));
  if (!known) {
    return refused(
        Reason::kUnknownGroup, rollout,
        name_of(id) + (origin == Origin::kThisStart ? " is granted to nobody"
                                                    : " was granted by no earlier start"));
  }
  const int64_t size = group != nullptr  ? static_cast<int64_t>(group->samples.size())
                       : options_.policy ? options_.policy->group_size()
                                         : rollout.group_size;
  if (size == rollout.group_size) {
    return Success{};
  }
  return refused(Reason::kInvalidField, rollout,
                 "group_size " + std::to_string(rollout.group_size) + ", " + name_of(id) + " has " +
                     std::to_string(size));
}

Status GroupLedger::check_age(const Rollout& rollout, const Group* group) const {
  const int64_t oldest = oldest_version(rollout);
  const bool granted = group != nullptr && group->granted;
  const bool stale = options_.policy && options_.policy->is_stale(rollout);
  if (!stale && (!granted || oldest >= group->min_version)) {
    return Success{};
  }
  const int64_t wanted =
      granted ? group->min_version : options_.policy->min_version(rollout.group_id);
  return refused(Reason::kStale, rollout,
                 "version " + std::to_string(oldest) + ", " + name_of(rollout.group_id) +
                     " wants " + std::to_string(wanted) + " or later" +
                     (oldest < wanted ? "" : ", and none that is newer than its step"));
}

Result<Verdict> GroupLedger::judge(const Rollout& rollout, const std::string& worker,
                                   Origin origin) const {
  if (is_over(rollout.group_id)) {
    return Verdict::kDuplicate;
  }
  const auto it = groups_.find(rollout.group_id);
  const Group* group = it == groups_.end() ? nullptr : &it->second;
  if (Status s = check_known(rollout, group, origin); !s) {
    return s.error();
  }
  if (group != nullptr && group->samples[static_cast<size_t>(rollout.sample_index)].delivered) {
    return Verdict::kDuplicate;
  }
  const bool granted = group != nullptr && group->granted;
  if (granted && origin == Origin::kThisStart &&
      !work_.was_assigned_to(rollout.group_id, rollout.sample_index, worker)) {
    return refused(Reason::kNotGranted, rollout,
                   "sample " + std::to_string(rollout.sample_index) + " of " +
                       name_of(rollout.group_id) + " was never granted to worker '" + worker + "'");
  }
  // The sample was not delivered, so an id that is known is another sample's.
  if (const auto other = sample_of_id_.find(rollout.rollout_id); other != sample_of_id_.end()) {
    return refused(
        Reason::kInvalidField, rollout,
        "rollout_id was used before, for sample " + std::to_string(other->second.second) + " of " +
            name_of(other->second.first) + "; expected an id that no other sample of the run has");
  }
  if (has_failed(rollout) && origin != Origin::kJournal) {
    const int32_t attempt = work_.attempt(rollout.group_id, rollout.sample_index);
    const bool is_last =
        granted && is_try(rollout, worker, origin) && attempt + 1 >= options_.max_attempts;
    if (!is_last) {
      return Verdict::kRetry;
    }
  }
  if (Status s = check_age(rollout, group); !s) {
    return s.error();
  }
  return Verdict::kNew;
}

std::vector<GroupGrant> GroupLedger::deliver(Rollout rollout) {
  const int64_t group_id = rollout.group_id;
  Group& group = open(group_id, rollout.group_size);
  work_.finish(group_id, rollout.sample_index);
  Sample& sample = group.samples[static_cast<size_t>(rollout.sample_index)];
  sample.delivered = true;
  sample.rollout_id = rollout.rollout_id;
  sample_of_id_.emplace(rollout.rollout_id, std::pair(group_id, rollout.sample_index));
  ++counters_.delivered;
  ++counters_.waiting;
  counters_.failed += has_failed(rollout) ? 1 : 0;
  sample.rollout = std::make_unique<Rollout>(std::move(rollout));
  ++group.held;
  if (!options_.policy || !is_complete(group_id)) {
    return {};
  }
  return replace(options_.policy->first_group(group_id));
}

void GroupLedger::retry(const Rollout& rollout, const std::string& worker, Origin origin) {
  const auto it = groups_.find(rollout.group_id);
  if (it == groups_.end() || !it->second.granted || !is_try(rollout, worker, origin)) {
    return;
  }
  work_.retry(rollout.group_id, rollout.sample_index);
}

bool GroupLedger::reopen(int64_t group_id, int32_t sample_index, const std::string& worker) {
  if (!work_.is_held_by(group_id, sample_index, worker)) {
    return false;
  }
  work_.retry(group_id, sample_index);
  return true;
}

std::optional<Rollout> GroupLedger::take_sample(int64_t group_id, int32_t sample_index) {
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) {
    return std::nullopt;
  }
  std::unique_ptr<Rollout> rollout =
      std::move(it->second.samples[static_cast<size_t>(sample_index)].rollout);
  if (!rollout) {
    return std::nullopt;
  }
  --it->second.held;
  --counters_.waiting;
  return std::move(*rollout);
}

bool GroupLedger::holds(int64_t group_id) const {
  const auto it = groups_.find(group_id);
  return it != groups_.end() && it->second.held > 0;
}

bool GroupLedger::is_complete(int64_t group_id) const {
  const auto it = groups_.find(group_id);
  return it != groups_.end() && it->second.state == State::kOpen &&
         static_cast<size_t>(it->second.held) == it->second.samples.size();
}

bool GroupLedger::teaches_nothing(const Group& group) const {
  std::vector<const Rollout*> rollouts;
  for (const Sample& sample : group.samples) {
    rollouts.push_back(sample.rollout.get());
  }
  return policy().teaches_nothing(rollouts);
}

// The group that fills a place now.
int64_t GroupLedger::current_group(int64_t first_group) const {
  int64_t id = first_group;
  for (auto it = groups_.find(id); it != groups_.end() && it->second.state == State::kReplaced;
       it = groups_.find(id)) {
    id = *policy().next_round(id);
  }
  return id;
}

int64_t GroupLedger::drop_rollouts(Group& group) {
  for (Sample& sample : group.samples) {
    sample.rollout.reset();
  }
  counters_.waiting -= group.held;
  return std::exchange(group.held, 0);
}

// Goes on to the next round while the place's group is complete and teaches nothing: of a journal,
// the groups of later rounds may be here already.
std::vector<GroupGrant> GroupLedger::replace(int64_t first_group) {
  std::vector<GroupGrant> grants;
  int64_t id = current_group(first_group);
  while (is_complete(id)) {
    const std::optional<int64_t> next = policy().next_round(id);
    Group& group = groups_.at(id);
    if (!next || !teaches_nothing(group)) {
      break;
    }
    group.state = State::kReplaced;
    counters_.dropped_zero_variance += drop_rollouts(group);
    ++counters_.refilled_groups;
    id = *next;
    if (policy().step_of(id) <= last_open_step_) {
      grants.push_back(grant_of(policy(), id));
    }
  }
  return grants;
}

std::vector<GroupGrant> GroupLedger::open_steps(int64_t last_step) {
  std::vector<GroupGrant> grants;
  for (; last_open_step_ < last_step; ++last_open_step_) {
    const GroupRange groups = policy().first_groups(last_open_step_ + 1);
    for (int64_t first = groups.begin; first < groups.end; ++first) {
      grants.push_back(grant_of(policy(), current_group(first)));
    }
  }
  return grants;
}

std::optional<std::vector<Rollout>> GroupLedger::take(int64_t step) {
  const GroupRange places = policy().first_groups(step);
  if (step != next_step_) {
    throw std::invalid_argument("step " + std::to_string(step) + " is taken, step " +
                                std::to_string(next_step_) + " is next");
  }
  std::vector<int64_t> groups;
  for (int64_t first = places.begin; first < places.end; ++first) {
    groups.push_back(current_group(first));
    if (!is_complete(groups.back())) {
      return std::nullopt;
    }
  }
  std::vector<Rollout> rollouts;
  for (const int64_t id : groups) {
    take_group(id, step, rollouts);
  }
  ++next_step_;
  return rollouts;
}

void GroupLedger::take_group(int64_t group_id, int64_t step, std::vector<Rollout>& out) {
  Group& group = groups_.at(group_id);
  const bool is_last_round = !policy().next_round(group_id);
  if (is_last_round && group_id != policy().first_group(group_id) && teaches_nothing(group)) {
    ++counters_.kept_zero_variance;
  }
  bool is_restorable = true;
  for (const Sample& sample : group.samples) {
    if (sample.rollout->trainer_term != options_.trainer_term) {
      continue;
    }
    for (const VersionSpan& span : sample.rollout->versions) {
      is_restorable = is_restorable && span.version <= checkpoint_;
    }
  }
  if (!is_restorable) {
    unrestorable_[step].push_back(group_id);
  }
  for (Sample& sample : group.samples) {
    out.push_back(std::move(*sample.rollout));
  }
  drop_rollouts(group);
  group.state = State::kTaken;
  for (auto later = policy().next_round(group_id); later; later = policy().next_round(*later)) {
    if (const auto it = groups_.find(*later); it != groups_.end()) {
      counters_.dropped_unneeded += drop_rollouts(it->second);
    }
  }
}

std::vector<int64_t> GroupLedger::checkpointed(int64_t step) {
  std::vector<int64_t> groups;
  for (; checkpoint_ < step; ++checkpoint_) {
    const GroupRange places = policy().first_groups(checkpoint_ + 1);
    for (int64_t first = places.begin; first < places.end; ++first) {
      add_rounds(policy(), first, groups);
    }
  }
  unrestorable_.erase(unrestorable_.begin(), unrestorable_.upper_bound(step));
  return groups;
}

std::vector<int64_t> GroupLedger::take_unrestorable(int64_t next_step) {
  std::vector<int64_t> groups;
  const auto end = unrestorable_.lower_bound(next_step);
  for (auto it = unrestorable_.begin(); it != end; ++it) {
    for (const int64_t id : it->second) {
      add_rounds(policy(), policy().first_group(id), groups);
    }
  }
  unrestorable_.erase(unrestorable_.begin(), end);
  return groups;
}

int64_t GroupLedger::consume(int64_t group_id) {
  consumed_.insert(group_id);
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) {
    return 0;
  }
  work_.remove(group_id);
  for (const Sample& sample : it->second.samples) {
    sample_of_id_.erase(sample.rollout_id);
  }
  const int64_t dropped = drop_rollouts(it->second);
  groups_.erase(it);
  return dropped;
}

}  // namespace ringside::bridge
