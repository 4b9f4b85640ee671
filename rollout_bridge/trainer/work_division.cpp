#include "rollout_bridge/trainer/work_division.h"

#include <algorithm>
#include <set>

namespace ringside::bridge {
namespace {

constexpr int64_t kNone = -1;

int64_t ceil_of(int64_t amount, int64_t part, int64_t whole) {
  return (amount * part + whole - 1) / whole;
}

}  // namespace

// State of a ready worker during one assign().
struct WorkDivision::Taker {
  std::string worker;
  int64_t version;
  int64_t capacity;
  int64_t in_flight;
  bool evaluates;
  int64_t share;  // most samples in flight after this assign(), rounded up to whole groups

  int64_t free() const { return std::min(capacity, share) - in_flight; }
  bool is_less_loaded_than(const Taker& other) const {
    return in_flight * other.capacity < other.in_flight * capacity;
  }
};

void WorkDivision::add(const GroupGrant& grant, const std::vector<bool>& done) {
  Group& group = groups_[grant.group_id];
  group.needs = {grant.min_version, grant.held_out >= 0};
  group.held_out = grant.held_out;
  group.place = {grant.priority, next_order_++};
  group.samples.resize(done.size());
  for (size_t i = 0; i < done.size(); ++i) {
    if (done[i]) group.samples[i].state = State::kDone;
  }
  group.missing = group.open = static_cast<int32_t>(std::count(done.begin(), done.end(), false));
  if (group.open == 0) {
    groups_.erase(grant.group_id);
    return;
  }
  add_waiting(grant.group_id, group, group.missing);
}

// `missing`: the change in the number of missing samples; group.missing has the new value already.
void WorkDivision::add_waiting(int64_t group_id, const Group& group, int64_t missing) {
  if (missing == 0) return;
  Waiting& waiting = waiting_[group.needs];
  waiting.samples += missing;
  if (group.missing > 0) {
    waiting.groups[group.place] = group_id;
  } else {
    waiting.groups.erase(group.place);
  }
  if (waiting.groups.empty()) waiting_.erase(group.needs);
}

void WorkDivision::set_state(int64_t group_id, Group& group, Sample& sample, State state) {
  if (sample.state == State::kAssigned) {
    const auto assignment = assignments_.find(sample.assignment);
    const auto held = in_flight_by_worker_.find(assignment->second.worker);
    --in_flight_;
    if (--held->second == 0) in_flight_by_worker_.erase(held);
    if (--assignment->second.samples == 0) assignments_.erase(assignment);
  }
  const int before = sample.state == State::kMissing ? 1 : 0;
  const int after = state == State::kMissing ? 1 : 0;
  sample.state = state;
  if (state == State::kDone) --group.open;
  group.missing += after - before;
  add_waiting(group_id, group, after - before);
}

void WorkDivision::finish(int64_t group_id, int32_t sample_index) {
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) return;
  Sample& sample = it->second.samples[static_cast<size_t>(sample_index)];
  if (sample.state == State::kDone) return;
  set_state(group_id, it->second, sample, State::kDone);
  if (it->second.open == 0) groups_.erase(it);
}

void WorkDivision::remove(int64_t group_id) {
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) return;
  for (Sample& sample : it->second.samples) {
    if (sample.state != State::kDone) set_state(group_id, it->second, sample, State::kDone);
  }
  groups_.erase(it);
}

void WorkDivision::retry(int64_t group_id, int32_t sample_index) {
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) return;
  Sample& sample = it->second.samples[static_cast<size_t>(sample_index)];
  if (sample.state == State::kAssigned) set_state(group_id, it->second, sample, State::kMissing);
  ++sample.attempt;
}

const WorkDivision::Sample* WorkDivision::find(int64_t group_id, int32_t sample_index) const {
  const auto it = groups_.find(group_id);
  if (it == groups_.end() || sample_index < 0 ||
      static_cast<size_t>(sample_index) >= it->second.samples.size()) {
    return nullptr;
  }
  return &it->second.samples[static_cast<size_t>(sample_index)];
}

bool WorkDivision::is_assigned(int64_t group_id, int32_t sample_index) const {
  const Sample* sample = find(group_id, sample_index);
  return sample != nullptr && sample->state == State::kAssigned;
}

bool WorkDivision::is_held_by(int64_t group_id, int32_t sample_index,
                              const std::string& worker) const {
  const Sample* sample = find(group_id, sample_index);
  return sample != nullptr && sample->state == State::kAssigned &&
         assignments_.at(sample->assignment).worker == worker;
}

bool WorkDivision::was_assigned_to(int64_t group_id, int32_t sample_index,
                                   const std::string& worker) const {
  const Sample* sample = find(group_id, sample_index);
  return sample != nullptr &&
         std::find(sample->asked.begin(), sample->asked.end(), worker) != sample->asked.end();
}

int32_t WorkDivision::attempt(int64_t group_id, int32_t sample_index) const {
  const Sample* sample = find(group_id, sample_index);
  return sample == nullptr ? 0 : sample->attempt;
}

// The next group to grant to a worker with these weights; kNone when none waits.
int64_t WorkDivision::first_waiting(int64_t version, bool evaluates) const {
  std::pair<Place, int64_t> first{{}, kNone};
  for (const auto& [needs, waiting] : waiting_) {
    if (!needs.met_by(version, evaluates)) continue;
    const auto candidate = *waiting.groups.begin();
    if (first.second == kNone || candidate.first < first.first) first = candidate;
  }
  return first.second;
}

bool WorkDivision::has_work_for(int64_t version, bool evaluates) const {
  return first_waiting(version, evaluates) != kNone;
}

Holding WorkDivision::waiting_for(int64_t version, bool evaluates) const {
  Holding sum;
  for (const auto& [needs, waiting] : waiting_) {
    if (!needs.met_by(version, evaluates)) continue;
    sum.groups += static_cast<int64_t>(waiting.groups.size());
    sum.samples += waiting.samples;
  }
  return sum;
}

// The ready workers and their shares of the samples in flight and waiting. `groups`: number of
// waiting groups.
std::vector<WorkDivision::Taker> WorkDivision::takers(std::span<const WorkerShare> workers,
                                                      int64_t& groups) const {
  int64_t version = -1;
  bool evaluates = false;
  int64_t ready = 0;
  for (const WorkerShare& w : workers) {
    if (!w.ready) continue;
    version = std::max(version, w.version);
    evaluates = evaluates || w.evaluates;
    ++ready;
  }
  const Holding waiting = waiting_for(version, evaluates);
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
    out.push_back({w.worker, w.version, w.capacity, in_flight(w.worker), w.evaluates,
                   ceil_of(samples, w.capacity, capacity)});
  }
  return out;
}

std::map<std::string, std::vector<GrantedGroup>> WorkDivision::assign(
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
    const int64_t group_id = first_waiting(taker->version, taker->evaluates);
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

GrantedGroup WorkDivision::hand_out(int64_t group_id, int64_t count, const std::string& worker,
                                    Time now) {
  Group& group = groups_.at(group_id);
  GrantedGroup granted{
      group_id,      static_cast<int32_t>(group.samples.size()), group.needs.min_version, 0, {},
      group.held_out};
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

Holding WorkDivision::release(const std::string& worker, Time before) {
  std::set<int64_t> groups;
  for (const auto& [number, a] : assignments_) {
    if (a.since >= before) break;
    if (a.worker == worker) groups.insert(a.group_id);
  }
  Holding released{static_cast<int64_t>(groups.size()), 0};
  for (const int64_t group_id : groups) {
    Group& group = groups_.at(group_id);
    for (Sample& sample : group.samples) {
      if (sample.state != State::kAssigned) continue;
      const Assignment& assignment = assignments_.at(sample.assignment);
      if (assignment.worker != worker || assignment.since >= before) continue;
      set_state(group_id, group, sample, State::kMissing);
      ++released.samples;
    }
  }
  return released;
}

std::map<std::string, int64_t> WorkDivision::held_since(Time before) const {
  std::map<std::string, int64_t> held;
  for (const auto& [number, a] : assignments_) {
    if (a.since >= before) break;
    held[a.worker] += a.samples;
  }
  return held;
}

int64_t WorkDivision::in_flight(const std::string& worker) const {
  const auto it = in_flight_by_worker_.find(worker);
  return it == in_flight_by_worker_.end() ? 0 : it->second;
}

}  // namespace ringside::bridge
