#include "rl/rollout_queue.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace ringside::rl {

bool RolloutQueue::is_stale(const bridge::Rollout& rollout) const {
  const int64_t trained_at = step_of(rollout.group_id) - 1;
  for (const bridge::VersionSpan& span : rollout.versions) {
    const bool never_existed =
        rollout.run_epoch != rules_.run_epoch && span.version > rules_.restored_version;
    if (never_existed || trained_at - span.version > rules_.max_staleness || span.version > trained_at) {
      return true;
    }
  }
  return false;
}

Admission RolloutQueue::add(bridge::Rollout rollout) {
  const int64_t step = step_of(rollout.group_id);
  if (step < next_step_) {
    return Admission::kFinished;
  }
  if (step > next_step_ + rules_.max_staleness) {
    return Admission::kTooEarly;
  }
  if (is_stale(rollout)) {
    return Admission::kStale;
  }
  const int32_t sample = rollout.sample_index;
  const auto [where, inserted] = groups_[rollout.group_id].emplace(sample, std::move(rollout));
  return inserted ? Admission::kAccepted : Admission::kDuplicate;
}

std::optional<std::vector<bridge::Rollout>> RolloutQueue::take(int64_t step) {
  if (step != next_step_) {
    throw std::invalid_argument("rollout queue: step " + std::to_string(step) + " taken, step " +
                                std::to_string(next_step_) + " is next");
  }
  const int64_t first = (step - 1) * rules_.prompts_per_step;
  const int64_t end = first + rules_.prompts_per_step;
  for (int64_t group = first; group < end; ++group) {
    const auto found = groups_.find(group);
    if (found == groups_.end() || static_cast<int64_t>(found->second.size()) < rules_.group_size) {
      return std::nullopt;
    }
  }
  std::vector<bridge::Rollout> rollouts;
  for (int64_t group = first; group < end; ++group) {
    for (auto& [sample, rollout] : groups_.at(group)) {
      rollouts.push_back(std::move(rollout));
    }
    groups_.erase(group);
  }
  ++next_step_;
  return rollouts;
}

int64_t RolloutQueue::size() const {
  int64_t count = 0;
  for (const auto& [id, group] : groups_) {
    count += static_cast<int64_t>(group.size());
  }
  return count;
}

}  // namespace ringside::rl
