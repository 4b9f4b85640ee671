#include "rollout_bridge/trainer/group_ledger.h"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace ringside::bridge {
namespace {

constexpr int64_t kNone = -1;

int64_t oldest_version(const Rollout& rollout) {
  int64_t oldest = INT64_MAX;
  for (const VersionSpan& span : rollout.versions) oldest = std::min(oldest, span.version);
  return oldest;
}

int64_t ceil_of(int64_t amount, int64_t part, int64_t whole) {
  return (amount * part + whole - 1) / whole;
}

}  // namespace

// State of a ready worker during one assign().
struct GroupLedger::Taker {
  std::string worker;
  int64_t version;
  int64_t capacity;
  int64_t in_flight;
  int64_t share;  // most samples in flight after this assign(), rounded up to whole groups

  int64_t free() const { return std::min(capacity, share) - in_flight; }
  bool is_less_loaded_than(const Taker& other) const {
    return in_flight * other.capacity < other.in_flight * capacity;
  }
};

GroupLedger::GroupLedger(int32_t max_attempts) : max_attempts_(max_attempts) {}

GroupLedger::Group& GroupLedger::open(int64_t group_id, int32_t size) {
  Group& group = groups_[group_id];
  if (group.samples.empty()) {
    group.size = group.missing = size;
    group.samples.resize(static_cast<size_t>(size));
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
  if (group.size != grant.group_size) {
    throw std::invalid_argument("grant of group " + std::to_string(grant.group_id) + " with " +
                                std::to_string(grant.group_size) + " samples, it has " +
                                std::to_string(group.size));
  }
  if (group.granted) return;
  group.granted = true;
  group.min_version = grant.min_version;
  group.place = {grant.priority, next_order_++};
  add_waiting(grant.group_id, group, group.missing);
}

bool GroupLedger::contradicts_unasked(const GroupGrant& grant) const {
  const auto it = groups_.find(grant.group_id);
  return it != groups_.end() && !it->second.granted && it->second.size != grant.group_size;
}

// `missing`: the change in the number of missing samples; group.missing has the new value already.
void GroupLedger::add_waiting(int64_t group_id, const Group& group, int64_t missing) {
  if (!group.granted || missing == 0) return;
  Waiting& waiting = waiting_[group.min_version];
  waiting.samples += missing;
  if (group.missing > 0) {
    waiting.groups[group.place] = group_id;
  } else {
    waiting.groups.erase(group.place);
  }
  if (waiting.groups.empty()) waiting_.erase(group.min_version);
}

void GroupLedger::set_state(int64_t group_id, Group& group, Sample& sample, State state) {
  const int before = sample.state == State::kMissing ? 1 : 0;
  const int after = state == State::kMissing ? 1 : 0;
  sample.state = state;
  group.missing += after - before;
  add_waiting(group_id, group, after - before);
}

bool GroupLedger::is_held_by(const Sample& sample, const std::string& worker) const {
  return sample.state == State::kAssigned && assignments_.at(sample.assignment).worker == worker;
}

bool GroupLedger::is_try(const Sample& sample, const Rollout& rollout, const std::string& worker,
                         Origin origin) const {
  if (sample.state == State::kAssigned) return is_held_by(sample, worker);
  // A rollout of an earlier grant is no attempt. One of a worker that was given up is.
  return origin == Origin::kThisStart && rollout.attempt == sample.attempt;
}

Result<Verdict> GroupLedger::judge(const Rollout& rollout, const std::string& worker,
                                   Origin origin) const {
  if (consumed_.contains(rollout.group_id) || rollout_ids_.contains(rollout.rollout_id)) {
    return Verdict::kDuplicate;
  }
  const auto it = groups_.find(rollout.group_id);
  const bool granted = it != groups_.end() && it->second.granted;
  const bool known = origin == Origin::kEarlierStart && granted_before_.contains(rollout.group_id);
  if (!granted && !known) {
    return Error{Reason::kUnknownGroup,
                 "rollout '" + rollout.rollout_id + "': group " + std::to_string(rollout.group_id) +
                     (origin == Origin::kThisStart ? " is granted to nobody"
                                                   : " was granted by no earlier start")};
  }
  if (it == groups_.end()) return has_failed(rollout) ? Verdict::kRetry : Verdict::kNew;
  return judge_sample(it->second, rollout, worker, origin);
}

Result<Verdict> GroupLedger::judge_sample(const Group& group, const Rollout& rollout,
                                          const std::string& worker, Origin origin) const {
  const std::string name = "group " + std::to_string(rollout.group_id);
  const auto error = [&](Reason reason, const std::string& what) {
    return Error{reason, "rollout '" + rollout.rollout_id + "': " + what};
  };
  if (group.size != rollout.group_size) {
    return error(Reason::kInvalidField, "group_size " + std::to_string(rollout.group_size) + ", " +
                                            name + " has " + std::to_string(group.size));
  }
  const Sample& sample = group.samples[static_cast<size_t>(rollout.sample_index)];
  if (sample.state == State::kDelivered) return Verdict::kDuplicate;
  if (origin == Origin::kThisStart &&
      std::find(sample.asked.begin(), sample.asked.end(), worker) == sample.asked.end()) {
    return error(Reason::kNotGranted, "sample " + std::to_string(rollout.sample_index) + " of " +
                                          name + " was never granted to worker '" + worker + "'");
  }
  if (has_failed(rollout) && (!group.granted || !is_try(sample, rollout, worker, origin) ||
                              sample.attempt + 1 < max_attempts_)) {
    return Verdict::kRetry;
  }
  if (group.granted && oldest_version(rollout) < group.min_version) {
    return error(Reason::kStale, "version " + std::to_string(oldest_version(rollout)) + ", " +
                                     name + " wants " + std::to_string(group.min_version) +
                                     " or later");
  }
  return Verdict::kNew;
}

void GroupLedger::unassign(int64_t group_id, Group& group, Sample& sample) {
  if (sample.state != State::kAssigned) return;
  const auto assignment = assignments_.find(sample.assignment);
  const auto held = in_flight_by_worker_.find(assignment->second.worker);
  --in_flight_;
  if (--held->second == 0) in_flight_by_worker_.erase(held);
  if (--assignment->second.samples == 0) assignments_.erase(assignment);
  set_state(group_id, group, sample, State::kMissing);
}

void GroupLedger::deliver(const Rollout& rollout) {
  Group& group = open(rollout.group_id, rollout.group_size);
  if (rollout.group_size != group.size) {  // only from a journal: judge() refuses it on the wire
    throw std::invalid_argument(
        "group " + std::to_string(rollout.group_id) + ": a rollout with group_size " +
        std::to_string(rollout.group_size) + ", known is " + std::to_string(group.size));
  }
  Sample& sample = group.samples[static_cast<size_t>(rollout.sample_index)];
  unassign(rollout.group_id, group, sample);
  set_state(rollout.group_id, group, sample, State::kDelivered);
  sample.rollout_id = rollout.rollout_id;
  rollout_ids_.insert(rollout.rollout_id);
}

bool GroupLedger::has_place_for(const Rollout& rollout) const {
  const auto it = groups_.find(rollout.group_id);
  if (it == groups_.end()) return true;
  return rollout.group_size == it->second.size &&
         it->second.samples[static_cast<size_t>(rollout.sample_index)].state != State::kDelivered;
}

void GroupLedger::retry(const Rollout& rollout, const std::string& worker, Origin origin) {
  const auto it = groups_.find(rollout.group_id);
  if (it == groups_.end() || !it->second.granted) return;
  Sample& sample = it->second.samples[static_cast<size_t>(rollout.sample_index)];
  if (!is_try(sample, rollout, worker, origin)) return;
  unassign(rollout.group_id, it->second, sample);
  ++sample.attempt;
}

bool GroupLedger::reopen(int64_t group_id, int32_t sample_index, const std::string& worker) {
  const auto it = groups_.find(group_id);
  if (it == groups_.end() || sample_index < 0 || sample_index >= it->second.size) return false;
  Sample& sample = it->second.samples[static_cast<size_t>(sample_index)];
  if (!is_held_by(sample, worker)) return false;
  unassign(group_id, it->second, sample);
  ++sample.attempt;
  return true;
}

// The next group to grant to a worker with these weights; kNone when none waits.
int64_t GroupLedger::first_waiting(int64_t version) const {
  std::pair<Place, int64_t> first{{}, kNone};
  for (auto it = waiting_.begin(); it != waiting_.end() && it->first <= version; ++it) {
    const auto candidate = *it->second.groups.begin();
    if (first.second == kNone || candidate.first < first.first) first = candidate;
  }
  return first.second;
}

bool GroupLedger::has_work_for(int64_t version) const {
  return !waiting_.empty() && waiting_.begin()->first <= version;
}

Holding GroupLedger::waiting_for(int64_t version) const {
  Holding sum;
  for (auto it = waiting_.begin(); it != waiting_.end() && it->first <= version; ++it) {
    sum.groups += static_cast<int64_t>(it->second.groups.size());
    sum.samples += it->second.samples;
  }
  return sum;
}

// The ready workers and their shares of the samples in flight and waiting. `groups`: number of
// waiting groups.
std::vector<GroupLedger::Taker> GroupLedger::takers(std::span<const WorkerShare> workers,
                                                    int64_t& groups) const {
  int64_t version = -1;
  int64_t ready = 0;
  for (const WorkerShare& w : workers) {
    if (!w.ready) continue;
    version = std::max(version, w.version);
    ++ready;
  }
  const Holding waiting = waiting_for(version);
  groups = waiting.groups;
  // With fewer groups than ready workers, no share is kept for workers that are not ready.
  const bool all_count = waiting.groups >= ready;
  int64_t samples = waiting.samples;
  int64_t capacity = 0;
  for (const WorkerShare& w : workers) {
    if (!w.ready && !all_count) continue;
    samples += in_flight(w.worker);
    capacity += w.capacity;
  }
  std::vector<Taker> out;
  for (const WorkerShare& w : workers) {
    if (!w.ready) continue;
    out.push_back({w.worker, w.version, w.capacity, in_flight(w.worker),
                   ceil_of(samples, w.capacity, capacity)});
  }
  return out;
}

std::map<std::string, std::vector<GrantedGroup>> GroupLedger::assign(
    std::span<const WorkerShare> workers, int64_t room, Time now) {
  std::map<std::string, std::vector<GrantedGroup>> granted;
  int64_t groups = 0;
  std::vector<Taker> takers = this->takers(workers, groups);
  const bool split = groups < static_cast<int64_t>(takers.size());
  std::erase_if(takers, [](const Taker& t) { return t.free() <= 0; });
  while (!takers.empty()) {
    const auto taker =
        std::min_element(takers.begin(), takers.end(),
                         [](const Taker& a, const Taker& b) { return a.is_less_loaded_than(b); });
    const int64_t group_id = first_waiting(taker->version);
    if (group_id == kNone) {
      takers.erase(taker);
      continue;
    }
    const int64_t missing = groups_.at(group_id).missing;
    // Stop instead of taking a smaller group, so that a large group cannot starve.
    if (missing > room) break;
    int64_t count = missing;
    if (split) {
      count = std::min(missing, taker->free());
    } else if (missing > taker->capacity) {
      count = taker->capacity - taker->in_flight;
    } else if (missing > taker->capacity - taker->in_flight) {
      takers.erase(taker);  // it gets the group when enough of its samples are delivered
      continue;
    }
    granted[taker->worker].push_back(hand_out(group_id, count, taker->worker, now));
    taker->in_flight += count;
    room -= count;
    if (taker->free() <= 0) takers.erase(taker);
  }
  return granted;
}

GrantedGroup GroupLedger::hand_out(int64_t group_id, int64_t count, const std::string& worker,
                                   Time now) {
  Group& group = groups_.at(group_id);
  GrantedGroup granted{group_id, group.size, group.min_version, 0, {}};
  const uint64_t number = next_assignment_++;
  assignments_[number] = {worker, group_id, count, now};
  for (size_t i = 0; count > 0; ++i) {
    Sample& sample = group.samples[i];
    if (sample.state != State::kMissing) continue;
    set_state(group_id, group, sample, State::kAssigned);
    sample.assignment = number;
    if (std::find(sample.asked.begin(), sample.asked.end(), worker) == sample.asked.end()) {
      sample.asked.push_back(worker);
    }
    granted.sample_indices.push_back(static_cast<int32_t>(i));
    granted.attempt = std::max(granted.attempt, sample.attempt);
    ++in_flight_;
    ++in_flight_by_worker_[worker];
    --count;
  }
  return granted;
}

Holding GroupLedger::release(const std::string& worker, Time before) {
  std::set<int64_t> groups;
  for (const auto& [number, a] : assignments_) {
    if (a.since >= before) break;
    if (a.worker == worker) groups.insert(a.group_id);
  }
  Holding released{static_cast<int64_t>(groups.size()), 0};
  for (const int64_t group_id : groups) {
    Group& group = groups_.at(group_id);
    for (Sample& sample : group.samples) {
      if (!is_held_by(sample, worker) || assignments_.at(sample.assignment).since >= before)
        continue;
      unassign(group_id, group, sample);
      ++released.samples;
    }
  }
  return released;
}

std::map<std::string, int64_t> GroupLedger::held_since(Time before) const {
  std::map<std::string, int64_t> held;
  for (const auto& [number, a] : assignments_) {
    if (a.since >= before) break;
    held[a.worker] += a.samples;
  }
  return held;
}

void GroupLedger::consume(int64_t group_id) {
  consumed_.insert(group_id);
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) return;
  Group& group = it->second;
  for (Sample& sample : group.samples) {
    unassign(group_id, group, sample);
    if (sample.state == State::kMissing) set_state(group_id, group, sample, State::kDelivered);
    rollout_ids_.erase(sample.rollout_id);
  }
  groups_.erase(it);
}

int64_t GroupLedger::in_flight(const std::string& worker) const {
  const auto it = in_flight_by_worker_.find(worker);
  return it == in_flight_by_worker_.end() ? 0 : it->second;
}

bool GroupLedger::expects(const Rollout& rollout) const {
  const auto it = groups_.find(rollout.group_id);
  if (it == groups_.end() || it->second.size != rollout.group_size) return false;
  return it->second.samples[static_cast<size_t>(rollout.sample_index)].state == State::kAssigned;
}

}  // namespace ringside::bridge
