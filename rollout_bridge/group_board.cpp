#include "rollout_bridge/group_board.h"

#include <algorithm>
#include <stdexcept>

namespace ringside::bridge {

GroupBoard::GroupBoard(int32_t max_attempts) : max_attempts_(max_attempts) {}

GroupBoard::Group& GroupBoard::open(int64_t group_id, int32_t size) {
  Group& group = groups_[group_id];
  if (group.samples.empty()) {
    group.size = size;
    group.samples.resize(static_cast<size_t>(size));
  }
  return group;
}

void GroupBoard::grant(const GroupGrant& grant) {
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
  queue_if_missing(grant.group_id, group);
}

bool GroupBoard::contradicts_unasked(const GroupGrant& grant) const {
  const auto it = groups_.find(grant.group_id);
  return it != groups_.end() && !it->second.granted && it->second.size != grant.group_size;
}

void GroupBoard::queue_if_missing(int64_t group_id, Group& group) {
  const bool missing = std::any_of(group.samples.begin(), group.samples.end(),
                                   [](const Sample& s) { return s.state == State::kMissing; });
  if (group.granted && missing) waiting_[group.place] = group_id;
}

bool GroupBoard::is_try(const Sample& sample, const Rollout& rollout, const std::string& worker,
                        Origin origin) {
  if (sample.state == State::kAssigned) return sample.worker == worker;
  // From before the grant it is no try; of a worker that was given up it is.
  return origin == Origin::kThisStart && rollout.attempt == sample.attempt;
}

Result<Verdict> GroupBoard::judge(const Rollout& rollout, const std::string& worker,
                                  Origin origin) const {
  const auto error = [&](Reason reason, const std::string& what) {
    return Error{reason, "rollout '" + rollout.rollout_id + "': " + what};
  };
  if (consumed_.contains(rollout.group_id) || rollout_ids_.contains(rollout.rollout_id)) {
    return Verdict::kDuplicate;
  }
  const bool failed = rollout.finish_reason == FinishReason::kAborted ||
                      rollout.finish_reason == FinishReason::kError;
  const auto it = groups_.find(rollout.group_id);
  const std::string name = "group " + std::to_string(rollout.group_id);
  if (origin == Origin::kThisStart && (it == groups_.end() || !it->second.granted)) {
    return error(Reason::kUnknownGroup, name + " is granted to nobody");
  }
  if (it == groups_.end()) return failed ? Verdict::kRetry : Verdict::kNew;
  const Group& group = it->second;
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
  if (failed && (!group.granted || !is_try(sample, rollout, worker, origin) ||
                 sample.attempt + 1 < max_attempts_)) {
    return Verdict::kRetry;
  }
  return Verdict::kNew;
}

void GroupBoard::unassign(Sample& sample) {
  if (sample.state != State::kAssigned) return;
  --in_flight_;
  const auto it = in_flight_by_worker_.find(sample.worker);
  if (--it->second == 0) in_flight_by_worker_.erase(it);
  sample.worker.clear();
  sample.state = State::kMissing;
}

void GroupBoard::deliver(const Rollout& rollout) {
  Group& group = open(rollout.group_id, rollout.group_size);
  if (rollout.group_size != group.size) {  // a journal's: judge() refuses it on the wire
    throw std::invalid_argument("group " + std::to_string(rollout.group_id) +
                                ": a rollout with group_size " +
                                std::to_string(rollout.group_size) + ", known is " +
                                std::to_string(group.size));
  }
  Sample& sample = group.samples[static_cast<size_t>(rollout.sample_index)];
  unassign(sample);
  sample.state = State::kDelivered;
  sample.rollout_id = rollout.rollout_id;
  rollout_ids_.insert(rollout.rollout_id);
}

void GroupBoard::retry(const Rollout& rollout, const std::string& worker, Origin origin) {
  const auto it = groups_.find(rollout.group_id);
  if (it == groups_.end() || !it->second.granted) return;
  Sample& sample = it->second.samples[static_cast<size_t>(rollout.sample_index)];
  if (!is_try(sample, rollout, worker, origin)) return;
  unassign(sample);
  ++sample.attempt;
  queue_if_missing(rollout.group_id, it->second);
}

bool GroupBoard::give_back(int64_t group_id, int32_t sample_index, const std::string& worker) {
  const auto it = groups_.find(group_id);
  if (it == groups_.end() || sample_index < 0 || sample_index >= it->second.size) return false;
  Sample& sample = it->second.samples[static_cast<size_t>(sample_index)];
  if (sample.state != State::kAssigned || sample.worker != worker) return false;
  unassign(sample);
  ++sample.attempt;
  queue_if_missing(group_id, it->second);
  return true;
}

GrantedGroup GroupBoard::hand_out(int64_t group_id, Group& group, const std::string& worker) {
  GrantedGroup granted{group_id, group.size, group.min_version, 0, {}};
  for (size_t i = 0; i < group.samples.size(); ++i) {
    Sample& sample = group.samples[i];
    if (sample.state != State::kMissing) continue;
    sample.state = State::kAssigned;
    sample.worker = worker;
    if (std::find(sample.asked.begin(), sample.asked.end(), worker) == sample.asked.end()) {
      sample.asked.push_back(worker);
    }
    granted.sample_indices.push_back(static_cast<int32_t>(i));
    granted.attempt = std::max(granted.attempt, sample.attempt);
    ++in_flight_;
    ++in_flight_by_worker_[worker];
  }
  return granted;
}

std::vector<GrantedGroup> GroupBoard::assign(const std::string& worker, int64_t version,
                                             int64_t free_samples, int64_t room) {
  std::vector<GrantedGroup> granted;
  bool idle = in_flight(worker) == 0;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const int64_t group_id = it->second;
    Group& group = groups_.at(group_id);
    const auto missing = std::count_if(group.samples.begin(), group.samples.end(),
                                       [](const auto& s) { return s.state == State::kMissing; });
    if (missing == 0) {  // arrived from elsewhere while it waited
      it = waiting_.erase(it);
      continue;
    }
    if (group.min_version > version) {
      ++it;
      continue;
    }
    // Stop rather than look for a smaller group: a large one must not wait for ever.
    if (missing > room || (missing > free_samples && !idle)) break;
    granted.push_back(hand_out(group_id, group, worker));
    it = waiting_.erase(it);
    free_samples -= missing;
    room -= missing;
    idle = false;
  }
  return granted;
}

int64_t GroupBoard::release(const std::string& worker) {
  int64_t released = 0;
  for (auto& [group_id, group] : groups_) {
    bool held = false;
    for (Sample& sample : group.samples) {
      if (sample.state != State::kAssigned || sample.worker != worker) continue;
      unassign(sample);
      held = true;
    }
    if (!held) continue;
    queue_if_missing(group_id, group);
    ++released;
  }
  return released;
}

void GroupBoard::consume(int64_t group_id) {
  consumed_.insert(group_id);
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) return;
  for (Sample& sample : it->second.samples) {
    unassign(sample);
    rollout_ids_.erase(sample.rollout_id);
  }
  if (it->second.granted) waiting_.erase(it->second.place);
  groups_.erase(it);
}

int64_t GroupBoard::in_flight(const std::string& worker) const {
  const auto it = in_flight_by_worker_.find(worker);
  return it == in_flight_by_worker_.end() ? 0 : it->second;
}

bool GroupBoard::expects(const Rollout& rollout) const {
  const auto it = groups_.find(rollout.group_id);
  if (it == groups_.end() || it->second.size != rollout.group_size) return false;
  return it->second.samples[static_cast<size_t>(rollout.sample_index)].state == State::kAssigned;
}

}  // namespace ringside::bridge
