#include "rollout_bridge/trainer/work_division.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace ringside::bridge {
namespace {

constexpr int64_t kNone = -1;

// A worker needs at least this long for a late sample: below it, jitter of messages counts.
constexpr std::chrono::milliseconds kLeastLate{100};
constexpr double kLateFactor = 2;  // times the longest that the idle worker needed
constexpr double kForget = 0.99;   // of that longest time, at each rollout
constexpr double kSmallestShare = 1.0 / 64;
constexpr double kShareRecovery = 0.01;  // of what lacks to a full share, at each rollout

int64_t ceil_of(int64_t amount, double part, double whole) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(amount) * part / whole - 1e-9));
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
  bool on_trial;
  uint64_t last_assigned;

  int64_t free() const { return std::min(capacity, share) - in_flight; }
  // An idle worker that is not on trial, then the least loaded one.
  bool is_before(const Taker& other) const {
    const bool idle = in_flight == 0 && !on_trial;
    const bool other_is_idle = other.in_flight == 0 && !other.on_trial;
    if (idle != other_is_idle) {
      return idle;
    }
    const int64_t mine = in_flight * other.capacity;
    const int64_t theirs = other.in_flight * capacity;
    return mine != theirs ? mine < theirs : last_assigned < other.last_assigned;
  }
};

void WorkDivision::add(Grant grant, int64_t priority) {
  if (grant.sample_indices.empty()) {
    return;
  }
  Group& group = groups_[grant.group_id];
  group.place = {priority, next_order_++};
  for (const int32_t index : std::exchange(grant.sample_indices, {})) {
    group.samples.push_back({.index = index});
  }
  group.grant = std::move(grant);
  change_missing(group, static_cast<int64_t>(group.samples.size()));
}

void WorkDivision::change_missing(Group& group, int64_t by) {
  group.missing += by;
  if (by == 0) {
    return;
  }
  Waiting& waiting = waiting_[group.needs()];
  waiting.samples += by;
  if (group.missing > 0) {
    waiting.groups[group.place] = group.grant.group_id;
  } else {
    waiting.groups.erase(group.place);
  }
  if (waiting.groups.empty()) {
    waiting_.erase(group.needs());
  }
}

// The sample is assigned.
void WorkDivision::take_from_worker(Sample& sample) {
  const auto assignment = assignments_.find(std::exchange(sample.assignment, 0));
  const auto held = in_flight_by_worker_.find(assignment->second.worker);
  --in_flight_;
  if (--held->second == 0) {
    in_flight_by_worker_.erase(held);
  }
  if (--assignment->second.samples == 0) {
    assignments_.erase(assignment);
  }
}

// The sample is assigned; then it waits for a worker again.
void WorkDivision::requeue(Group& group, Sample& sample) {
  take_from_worker(sample);
  change_missing(group, 1);
}

void WorkDivision::finish(int64_t group_id, int32_t sample_index) {
  Sample* sample = find(group_id, sample_index);
  if (sample == nullptr) {
    return;
  }
  Group& group = groups_.at(group_id);
  if (sample->assignment != 0) {
    take_from_worker(*sample);
  } else {
    change_missing(group, -1);
  }
  group.samples.erase(group.samples.begin() + (sample - group.samples.data()));
  if (group.samples.empty()) {
    groups_.erase(group_id);
  }
}

void WorkDivision::remove(int64_t group_id) {
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) {
    return;
  }
  for (Sample& sample : it->second.samples) {
    if (sample.assignment != 0) {
      take_from_worker(sample);
    }
  }
  change_missing(it->second, -it->second.missing);
  groups_.erase(it);
}

void WorkDivision::retry(int64_t group_id, int32_t sample_index) {
  Sample* sample = find(group_id, sample_index);
  if (sample == nullptr) {
    return;
  }
  if (sample->assignment != 0) {
    requeue(groups_.at(group_id), *sample);
  }
  ++sample->attempt;
}

const WorkDivision::Sample* WorkDivision::find(int64_t group_id, int32_t sample_index) const {
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) {
    return nullptr;
  }
  const std::vector<Sample>& samples = it->second.samples;
  const auto found = std::ranges::lower_bound(samples, sample_index, {}, &Sample::index);
  return found == samples.end() || found->index != sample_index ? nullptr : &*found;
}

WorkDivision::Sample* WorkDivision::find(int64_t group_id, int32_t sample_index) {
  return const_cast<Sample*>(std::as_const(*this).find(group_id, sample_index));
}

bool WorkDivision::is_assigned(int64_t group_id, int32_t sample_index) const {
  const Sample* sample = find(group_id, sample_index);
  return sample != nullptr && sample->assignment != 0;
}

bool WorkDivision::is_held_by(int64_t group_id, int32_t sample_index,
                              const std::string& worker) const {
  const Sample* sample = find(group_id, sample_index);
  return sample != nullptr && sample->assignment != 0 &&
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
    if (!needs.met_by(version, evaluates)) {
      continue;
    }
    const auto candidate = *waiting.groups.begin();
    if (first.second == kNone || candidate.first < first.first) {
      first = candidate;
    }
  }
  return first.second;
}

bool WorkDivision::has_work_for(int64_t version, bool evaluates) const {
  return first_waiting(version, evaluates) != kNone;
}

Holding WorkDivision::waiting_for(int64_t version, bool evaluates) const {
  Holding sum;
  for (const auto& [needs, waiting] : waiting_) {
    if (!needs.met_by(version, evaluates)) {
      continue;
    }
    sum.groups += static_cast<int64_t>(waiting.groups.size());
    sum.samples += waiting.samples;
  }
  return sum;
}

double WorkDivision::weight(const WorkerShare& worker) const {
  if (worker.on_trial) {
    return 1;
  }
  const auto pace = paces_.find(worker.worker);
  return static_cast<double>(worker.capacity) * (pace == paces_.end() ? 1 : pace->second.share);
}

// The ready workers and their shares of the samples in flight and waiting. `groups`: number of
// waiting groups.
std::vector<WorkDivision::Taker> WorkDivision::takers(std::span<const WorkerShare> workers,
                                                      int64_t& groups) const {
  int64_t version = -1;
  bool evaluates = false;
  int64_t ready = 0;
  for (const WorkerShare& w : workers) {
    if (!w.ready) {
      continue;
    }
    version = std::max(version, w.version);
    evaluates = evaluates || w.evaluates;
    ++ready;
  }
  const Holding waiting = waiting_for(version, evaluates);
  groups = waiting.groups;
  // With fewer groups than ready workers, no share is kept for workers that are not ready.
  const bool all_count = waiting.groups >= ready;
  int64_t samples = waiting.samples;
  double weights = 0;
  for (const WorkerShare& w : workers) {
    if (!w.ready && !all_count) {
      continue;
    }
    samples += in_flight(w.worker);
    weights += weight(w);
  }
  std::vector<Taker> out;
  for (const WorkerShare& w : workers) {
    if (!w.ready) {
      continue;
    }
    const auto pace = paces_.find(w.worker);
    out.push_back({w.worker, w.version, w.on_trial ? 1 : w.capacity, in_flight(w.worker),
                   w.evaluates, ceil_of(samples, weight(w), weights), w.on_trial,
                   pace == paces_.end() ? 0 : pace->second.last_assigned});
  }
  return out;
}

std::map<std::string, std::vector<Grant>> WorkDivision::assign(std::span<const WorkerShare> workers,
                                                               int64_t room, Time now) {
  std::map<std::string, std::vector<Grant>> granted;
  int64_t groups = 0;
  std::vector<Taker> takers = this->takers(workers, groups);
  const bool split = groups < static_cast<int64_t>(takers.size());
  std::erase_if(takers, [](const Taker& t) { return t.free() <= 0; });
  while (!takers.empty()) {
    const auto taker =
        std::min_element(takers.begin(), takers.end(),
                         [](const Taker& a, const Taker& b) { return a.is_before(b); });
    const int64_t group_id = first_waiting(taker->version, taker->evaluates);
    if (group_id == kNone) {
      takers.erase(taker);
      continue;
    }
    Group& group = groups_.at(group_id);
    const int64_t missing = group.missing;
    // Stop instead of taking a smaller group, so that a large group cannot starve.
    if (missing > room) {
      break;
    }
    int64_t count = missing;
    if (split) {
      count = std::min(missing, taker->free());
    } else if (missing > taker->capacity) {
      count = taker->capacity - taker->in_flight;
    } else if (missing > taker->capacity - taker->in_flight) {
      takers.erase(taker);  // it gets the group when enough of its samples are delivered
      continue;
    }
    granted[taker->worker].push_back(hand_out(group, count, taker->worker, now));
    taker->in_flight += count;
    room -= count;
    if (taker->free() <= 0) {
      takers.erase(taker);
    }
  }
  return granted;
}

Grant WorkDivision::hand_out(Group& group, int64_t count, const std::string& worker, Time now) {
  std::vector<int32_t> samples;
  for (size_t i = 0; static_cast<int64_t>(samples.size()) < count; ++i) {
    if (group.samples[i].assignment == 0) {
      samples.push_back(group.samples[i].index);
    }
  }
  return assign_samples(group, std::move(samples), worker, now);
}

// The samples wait for a worker.
Grant WorkDivision::assign_samples(Group& group, std::vector<int32_t> samples,
                                   const std::string& worker, Time now) {
  Grant granted = group.grant;
  const uint64_t number = ++next_assignment_;
  const auto count = static_cast<int64_t>(samples.size());
  assignments_[number] = {worker, granted.group_id, count, now};
  paces_[worker].last_assigned = number;
  for (const int32_t index : samples) {
    Sample& sample = *find(granted.group_id, index);
    sample.assignment = number;
    sample.first_asked = sample.asked.empty() ? now : sample.first_asked;
    if (std::find(sample.asked.begin(), sample.asked.end(), worker) == sample.asked.end()) {
      sample.asked.push_back(worker);
    }
    granted.attempt = std::max(granted.attempt, sample.attempt);
  }
  change_missing(group, -count);
  granted.sample_indices = std::move(samples);
  in_flight_ += count;
  in_flight_by_worker_[worker] += count;
  return granted;
}

void WorkDivision::answered(int64_t group_id, int32_t sample_index, const std::string& worker,
                            Time now) {
  if (!is_held_by(group_id, sample_index, worker)) {
    return;
  }
  Pace& pace = paces_[worker];
  const Span took = now - assignments_.at(find(group_id, sample_index)->assignment).since;
  pace.longest = std::max(took, std::chrono::duration_cast<Span>(kForget * pace.longest));
  pace.share += kShareRecovery * (1 - pace.share);
}

// The worker with the most samples that were assigned before `before` and that `idle` may make.
std::pair<std::string, WorkDivision::Late> WorkDivision::latest_holder(const WorkerShare& idle,
                                                                       Time before) const {
  std::map<std::string, Late> late;
  for (const auto& [number, a] : assignments_) {
    if (a.since >= before) {
      break;
    }
    const Group& group = groups_.at(a.group_id);
    if (a.worker == idle.worker || !group.needs().met_by(idle.version, idle.evaluates)) {
      continue;
    }
    for (const Sample& sample : group.samples) {
      if (sample.assignment == number) {
        late[a.worker].emplace_back(a.group_id, sample.index);
      }
    }
  }
  const auto most = std::max_element(late.begin(), late.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  if (most == late.end()) {
    return {};
  }
  return {most->first, std::move(most->second)};
}

std::vector<Takeover> WorkDivision::take_over(std::span<const WorkerShare> workers, Time now) {
  std::vector<Takeover> takeovers;
  for (const WorkerShare& idle : workers) {
    const auto pace = paces_.find(idle.worker);
    if (!idle.ready || idle.on_trial || in_flight(idle.worker) > 0 || pace == paces_.end() ||
        pace->second.longest == Span{} || has_work_for(idle.version, idle.evaluates)) {
      continue;
    }
    const Span patience = std::max<Span>(
        kLeastLate, std::chrono::duration_cast<Span>(kLateFactor * pace->second.longest));
    auto [holder, late] = latest_holder(idle, now - patience);
    if (late.empty()) {
      continue;
    }
    const size_t count =
        std::min<size_t>((late.size() + 1) / 2, static_cast<size_t>(idle.capacity));
    const Time latest =
        assignments_.at(find(late.back().first, late.back().second)->assignment).since;
    std::map<int64_t, std::vector<int32_t>> taken;
    for (auto it = late.end() - static_cast<std::ptrdiff_t>(count); it != late.end(); ++it) {
      requeue(groups_.at(it->first), *find(it->first, it->second));
      taken[it->first].push_back(it->second);
    }
    Takeover& takeover = takeovers.emplace_back(Takeover{holder, idle.worker, {}});
    for (auto& [group_id, samples] : taken) {
      takeover.groups.push_back(
          assign_samples(groups_.at(group_id), std::move(samples), idle.worker, now));
    }
    cut_share(holder, latest, now);
  }
  return takeovers;
}

// Halves the share of a worker that is late, once for what it was granted with one share.
void WorkDivision::cut_share(const std::string& worker, Time assigned, Time now) {
  Pace& pace = paces_[worker];
  if (assigned <= pace.last_cut) {
    return;
  }
  pace.share = std::max(kSmallestShare, pace.share / 2);
  pace.last_cut = now;
}

Holding WorkDivision::leave(const std::string& worker) {
  paces_.erase(worker);
  return release(worker);
}

Holding WorkDivision::release(const std::string& worker, Time before) {
  std::set<int64_t> groups;
  for (const auto& [number, a] : assignments_) {
    if (a.since >= before) {
      break;
    }
    if (a.worker == worker) {
      groups.insert(a.group_id);
    }
  }
  Holding released{static_cast<int64_t>(groups.size()), 0};
  for (const int64_t group_id : groups) {
    Group& group = groups_.at(group_id);
    for (Sample& sample : group.samples) {
      if (sample.assignment == 0) {
        continue;
      }
      const Assignment& assignment = assignments_.at(sample.assignment);
      if (assignment.worker != worker || assignment.since >= before) {
        continue;
      }
      requeue(group, sample);
      ++released.samples;
    }
  }
  return released;
}

std::map<std::string, int64_t> WorkDivision::held_since(Time before) const {
  std::map<std::string, int64_t> held;
  for (const auto& [number, a] : assignments_) {
    if (a.since >= before) {
      break;
    }
    held[a.worker] += a.samples;
  }
  return held;
}

std::vector<OwedSample> WorkDivision::owed(int64_t group_id, Time before) const {
  std::vector<OwedSample> owed;
  const auto group = groups_.find(group_id);
  if (group == groups_.end()) {
    return owed;
  }
  for (const Sample& sample : group->second.samples) {
    if (sample.asked.empty() || sample.first_asked >= before) {
      continue;
    }
    OwedSample& added = owed.emplace_back(OwedSample{.index = sample.index});
    if (const auto held = assignments_.find(sample.assignment); held != assignments_.end()) {
      added.holder = held->second.worker;
      added.since = held->second.since;
    }
  }
  return owed;
}

int64_t WorkDivision::in_flight(const std::string& worker) const {
  const auto it = in_flight_by_worker_.find(worker);
  return it == in_flight_by_worker_.end() ? 0 : it->second;
}

}  // namespace ringside::bridge
