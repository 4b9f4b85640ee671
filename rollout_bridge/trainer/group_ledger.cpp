#include "rollout_bridge/trainer/group_ledger.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "rollout_bridge/trainer/living_records.h"
#include "rollout_bridge/trainer/stragglers.h"

namespace ringside::bridge {
namespace {

Error refused(Reason reason, const Rollout& rollout, const std::string& what) {
  return {reason, "rollout '" + rollout.rollout_id + "': " + what};
}

std::string name_of(int64_t group_id) { return "group " + std::to_string(group_id); }

Status check_age(const Rollout& rollout, const GroupRule& rule) {
  const auto [oldest, newest] =
      std::minmax_element(rollout.versions.begin(), rollout.versions.end(),
                          [](const auto& a, const auto& b) { return a.version < b.version; });
  if (oldest == rollout.versions.end() ||
      (oldest->version >= rule.min_version && newest->version <= rule.max_version)) {
    return Success{};
  }
  return refused(
      Reason::kStale, rollout,
      "version " + std::to_string(oldest->version) + ", " + name_of(rollout.group_id) + " wants " +
          std::to_string(rule.min_version) + " or later" +
          (oldest->version < rule.min_version ? "" : ", and none that is newer than its step"));
}

GroupLedger::Options checked(GroupLedger::Options options) {
  const GroupPolicy& policy = options.policy;
  if (!policy.rule_of || !policy.first_groups || !policy.reward_of || !policy.teaches_nothing) {
    throw std::invalid_argument("GroupPolicy: a function is not set; expected all four");
  }
  return options;
}

}  // namespace

GroupLedger::GroupLedger(Options options, const IdSet& consumed, IdSet granted_before)
    : options_(checked(std::move(options))),
      consumed_(consumed),
      granted_before_(std::move(granted_before)),
      next_step_(options_.policy.first_step),
      last_open_step_(next_step_ - 1),
      checkpoint_(next_step_ - 1) {}

// Every group that may fill a place, granted or not.
void GroupLedger::add_rounds(int64_t first_group, std::vector<int64_t>& groups) const {
  for (std::optional<int64_t> id = first_group; id; id = rule_of(*id).next_round) {
    groups.push_back(*id);
  }
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

void GroupLedger::grant(int64_t group_id) {
  const GroupRule rule = rule_of(group_id);
  if (group_id < 0 || rule.group_size < 1) {
    throw std::invalid_argument("grant of " + name_of(group_id) + " with " +
                                std::to_string(rule.group_size) +
                                " samples: expected an id >= 0 and a size >= 1");
  }
  Group& group = open(group_id, rule.group_size);
  if (std::exchange(group.granted, true)) {
    return;
  }
  Grant grant{group_id, rule.group_size, rule.min_version};
  for (size_t i = 0; i < group.samples.size(); ++i) {
    if (!group.samples[i].is_delivered()) {
      grant.sample_indices.push_back(static_cast<int32_t>(i));
    }
  }
  // Groups of earlier steps are assigned first, even if they are granted later.
  work_.add(std::move(grant), rule.step);
}

bool GroupLedger::is_over(int64_t group_id) const {
  const int64_t step = rule_of(group_id).step;
  return consumed_.contains(group_id) || (step != 0 && step < next_step_);
}

int32_t GroupLedger::Group::good() const {
  return static_cast<int32_t>(std::ranges::count_if(
      samples, [](const Sample& sample) { return sample.is_delivered() && !sample.failed; }));
}

// Rollouts that were journalled before a stand-in may be lost with their weights. Their samples are
// made again, and the stand-in's with them. The journal keeps the order within a group, so the next
// start decides alike.
Status GroupLedger::check_stand_in(const Rollout& rollout, const Group* group,
                                   Origin origin) const {
  if (!is_stand_in_id(rollout.rollout_id)) {
    return Success{};
  }
  if (origin != Origin::kJournal) {
    return refused(Reason::kInvalidField, rollout, "only the trainer makes such ids");
  }
  const int32_t good = group == nullptr ? 0 : group->good();
  if (good >= options_.policy.min_group_size) {
    return Success{};
  }
  return refused(Reason::kStale, rollout,
                 name_of(rollout.group_id) + " has " + std::to_string(good) + " rollouts, and " +
                     std::to_string(options_.policy.min_group_size) +
                     " are needed to train without the others");
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

Status GroupLedger::check_known(const Rollout& rollout, const GroupRule& rule, const Group* group,
                                Origin origin) const {
  const int64_t id = rollout.group_id;
  if (rule.step == 0) {
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
  if (rule.group_size == rollout.group_size) {
    return Success{};
  }
  return refused(Reason::kInvalidField, rollout,
                 "group_size " + std::to_string(rollout.group_size) + ", " + name_of(id) + " has " +
                     std::to_string(rule.group_size));
}

Result<Verdict> GroupLedger::judge(const Rollout& rollout, const std::string& worker,
                                   Origin origin) const {
  if (is_over(rollout.group_id)) {
    return Verdict::kDuplicate;
  }
  const auto it = groups_.find(rollout.group_id);
  const Group* group = it == groups_.end() ? nullptr : &it->second;
  const GroupRule rule = rule_of(rollout.group_id);
  if (Status s = check_known(rollout, rule, group, origin); !s) {
    return s.error();
  }
  if (group != nullptr &&
      group->samples[static_cast<size_t>(rollout.sample_index)].is_delivered()) {
    return Verdict::kDuplicate;
  }
  if (Status s = check_stand_in(rollout, group, origin); !s) {
    return s.error();
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
  if (Status s = check_age(rollout, rule); !s) {
    return s.error();
  }
  return Verdict::kNew;
}

std::vector<int64_t> GroupLedger::deliver(const Rollout& rollout, FlatRollout message) {
  const int64_t group_id = rollout.group_id;
  Group& group = open(group_id, rollout.group_size);
  work_.finish(group_id, rollout.sample_index);
  Sample& sample = group.samples[static_cast<size_t>(rollout.sample_index)];
  sample.rollout_id = rollout.rollout_id;
  sample_of_id_.emplace(rollout.rollout_id, std::pair(group_id, rollout.sample_index));
  ++counters_.delivered;
  ++counters_.waiting;
  sample.failed = has_failed(rollout);
  counters_.failed += sample.failed ? 1 : 0;
  counters_.stragglers += is_stand_in_id(rollout.rollout_id) ? 1 : 0;
  sample.reward = options_.policy.reward_of(rollout);
  if (rollout.trainer_term == options_.trainer_term) {
    for (const VersionSpan& span : rollout.versions) {
      sample.newest_version = std::max(sample.newest_version, span.version);
    }
  }
  sample.images = image_hashes(rollout);
  sample.message = std::move(message);
  ++group.held;
  return is_complete(group_id) ? replace(rule_of(group_id).first_group) : std::vector<int64_t>();
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
  std::vector<std::optional<double>> rewards;
  for (const Sample& sample : group.samples) {
    rewards.push_back(sample.reward);
  }
  return options_.policy.teaches_nothing(rewards);
}

// The group that fills a place now.
int64_t GroupLedger::current_group(int64_t first_group) const {
  int64_t id = first_group;
  for (auto it = groups_.find(id); it != groups_.end() && it->second.state == State::kReplaced;
       it = groups_.find(id)) {
    id = *rule_of(id).next_round;
  }
  return id;
}

int64_t GroupLedger::drop_rollouts(Group& group) {
  for (Sample& sample : group.samples) {
    sample.message = {};
  }
  counters_.waiting -= group.held;
  return std::exchange(group.held, 0);
}

// Goes on to the next round while the place's group is complete and teaches nothing: of a journal,
// the groups of later rounds may be here already.
std::vector<int64_t> GroupLedger::replace(int64_t first_group) {
  std::vector<int64_t> grants;
  int64_t id = current_group(first_group);
  while (is_complete(id)) {
    const std::optional<int64_t> next = rule_of(id).next_round;
    Group& group = groups_.at(id);
    if (!next || !teaches_nothing(group)) {
      break;
    }
    group.state = State::kReplaced;
    counters_.dropped_zero_variance += drop_rollouts(group);
    ++counters_.refilled_groups;
    id = *next;
    if (rule_of(id).step <= last_open_step_) {
      grants.push_back(id);
    }
  }
  return grants;
}

std::vector<int64_t> GroupLedger::open_steps(int64_t last_step) {
  std::vector<int64_t> grants;
  for (; last_open_step_ < last_step; ++last_open_step_) {
    for (const int64_t first : options_.policy.first_groups(last_open_step_ + 1)) {
      grants.push_back(current_group(first));
    }
  }
  return grants;
}

std::optional<GroupLedger::Taken> GroupLedger::take(int64_t step) {
  if (step != next_step_) {
    throw std::invalid_argument("step " + std::to_string(step) + " is taken, step " +
                                std::to_string(next_step_) + " is next");
  }
  std::vector<int64_t> groups;
  for (const int64_t first : options_.policy.first_groups(step)) {
    groups.push_back(current_group(first));
    if (!is_complete(groups.back())) {
      return std::nullopt;
    }
  }
  Taken taken;
  for (const int64_t id : groups) {
    take_group(id, step, taken);
  }
  ++next_step_;
  return taken;
}

std::vector<GroupLedger::Straggler> GroupLedger::stragglers(int64_t step,
                                                            WorkDivision::Time before) const {
  std::vector<Straggler> found;
  if (step != next_step_) {
    return found;
  }
  for (const int64_t first : options_.policy.first_groups(step)) {
    const int64_t id = current_group(first);
    const auto it = groups_.find(id);
    if (it == groups_.end() || it->second.good() < options_.policy.min_group_size) {
      continue;
    }
    std::vector<OwedSample> owed = work_.owed(id, before);
    if (owed.empty()) {
      continue;
    }
    const auto& samples = it->second.samples;
    const auto good = std::ranges::find_if(
        samples, [](const Sample& sample) { return sample.is_delivered() && !sample.failed; });
    const Rollout sibling = read_rollouts(std::span(&good->message, 1)).value().front();
    for (OwedSample& sample : owed) {
      Rollout stand_in = make_stand_in(sibling, sample.index, options_.trainer_term);
      found.push_back({std::move(stand_in), std::move(sample)});
    }
  }
  return found;
}

void GroupLedger::take_group(int64_t group_id, int64_t step, Taken& out) {
  Group& group = groups_.at(group_id);
  const GroupRule rule = rule_of(group_id);
  if (!rule.next_round && group_id != rule.first_group && teaches_nothing(group)) {
    ++counters_.kept_zero_variance;
  }
  bool is_restorable = true;
  for (const Sample& sample : group.samples) {
    is_restorable = is_restorable && sample.newest_version <= checkpoint_;
  }
  if (!is_restorable) {
    unrestorable_[step].push_back(group_id);
  }
  for (Sample& sample : group.samples) {
    out.rollouts.push_back(std::move(sample.message));
    out.images.insert(sample.images.begin(), sample.images.end());
  }
  drop_rollouts(group);
  group.state = State::kTaken;
  for (auto later = rule.next_round; later; later = rule_of(*later).next_round) {
    if (const auto it = groups_.find(*later); it != groups_.end()) {
      counters_.dropped_unneeded += drop_rollouts(it->second);
    }
  }
}

std::vector<int64_t> GroupLedger::checkpointed(int64_t step) {
  std::vector<int64_t> groups;
  for (; checkpoint_ < step; ++checkpoint_) {
    for (const int64_t first : options_.policy.first_groups(checkpoint_ + 1)) {
      add_rounds(first, groups);
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
      add_rounds(rule_of(id).first_group, groups);
    }
  }
  unrestorable_.erase(unrestorable_.begin(), end);
  return groups;
}

int64_t GroupLedger::forget(int64_t group_id) {
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
