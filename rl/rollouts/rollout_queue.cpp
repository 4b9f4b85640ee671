#include "rl/rollouts/rollout_queue.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringside::rl {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) {
    throw std::invalid_argument("rollout queue: " + what);
  }
}

}  // namespace

RolloutQueue::RolloutQueue(QueueRules rules, int64_t next_step)
    : rules_(std::move(rules)), next_step_(next_step), newest_version_(rules_.restored_version) {
  constexpr int64_t kMaxRounds = bridge::kMaxGroupId / kRoundStride;
  require(rules_.prompts_per_step >= 1 && rules_.group_size >= 1 && rules_.max_staleness >= 0,
          std::to_string(rules_.prompts_per_step) + " prompts a step, groups of " +
              std::to_string(rules_.group_size) + ", staleness " +
              std::to_string(rules_.max_staleness) + "; expected at least 1, 1 and 0");
  require(rules_.refill_rounds >= 1 && rules_.refill_rounds <= kMaxRounds,
          std::to_string(rules_.refill_rounds) + " rounds of refill, expected 1 to " +
              std::to_string(kMaxRounds));
  require(rules_.refill_rounds == 1 || rules_.total_reward != nullptr,
          std::to_string(rules_.refill_rounds) +
              " rounds of refill without a total_reward to judge groups by");
}

int64_t RolloutQueue::min_version(int64_t group_id) const {
  return std::max<int64_t>(0, step_of(group_id) - 1 - rules_.max_staleness);
}

bool RolloutQueue::is_stale(const bridge::Rollout& rollout) const {
  const int64_t trained_at = step_of(rollout.group_id) - 1;
  int64_t newest = newest_version_;
  if (rollout.trainer_term != rules_.trainer_term) {
    const auto known = rules_.newest_of_term.find(rollout.trainer_term);
    if (known == rules_.newest_of_term.end()) {
      return true;  // its version numbers may stand for weights of another history
    }
    newest = known->second;
  }
  newest = std::min(newest, trained_at);
  return std::any_of(
      rollout.versions.begin(), rollout.versions.end(), [&](const bridge::VersionSpan& span) {
        return span.version > newest || trained_at - span.version > rules_.max_staleness;
      });
}

int64_t RolloutQueue::current_round(int64_t slot) const {
  const auto found = rounds_.find(slot);
  return found == rounds_.end() ? 0 : found->second;
}

int64_t RolloutQueue::erase(int64_t group_id) {
  const auto found = groups_.find(group_id);
  if (found == groups_.end()) {
    return 0;
  }
  const auto count = static_cast<int64_t>(found->second.size());
  groups_.erase(found);
  return count;
}

Admission RolloutQueue::add(bridge::Rollout rollout) {
  const int64_t group_id = rollout.group_id;
  const int64_t slot = slot_of(group_id);
  const int64_t step = step_of(group_id);
  if (step < next_step_ || step > next_step_ + rules_.max_staleness ||
      round_of(group_id) >= rules_.refill_rounds) {
    ++counters_.dropped_out_of_window;
    requests_.forget.push_back(group_id);
    return step < next_step_                          ? Admission::kFinished
           : step > next_step_ + rules_.max_staleness ? Admission::kTooEarly
                                                      : Admission::kUnasked;
  }
  if (round_of(group_id) < current_round(slot)) {
    ++counters_.dropped_out_of_window;
    return Admission::kUnasked;
  }
  if (const bool fits = rollout.group_size == rules_.group_size; !fits || is_stale(rollout)) {
    drop_group(group_id);
    return fits ? Admission::kStale : Admission::kWrongSize;
  }
  const bool failed = bridge::has_failed(rollout);
  const int32_t sample = rollout.sample_index;
  if (!groups_[group_id].emplace(sample, std::move(rollout)).second) {
    ++counters_.duplicates;
    return Admission::kDuplicate;
  }
  ++counters_.accepted;
  counters_.failed_samples += failed ? 1 : 0;
  resolve(slot);
  return Admission::kAccepted;
}

void RolloutQueue::drop_group(int64_t group_id) {
  ++counters_.dropped_stale;
  counters_.dropped_siblings += erase(group_id);
  requests_.forget.push_back(group_id);
  // The group of a later round is granted when its round comes.
  if (group_id == current_group(slot_of(group_id))) {
    ++counters_.regranted_groups;
    requests_.grant.push_back(group_id);
  }
}

// Samples without a score are ignored. A group without any score counts as one without variance.
bool RolloutQueue::has_equal_rewards(const Group& group) const {
  std::optional<double> first;
  for (const auto& [sample, rollout] : group) {
    const std::optional<double> reward = rules_.total_reward(rollout);
    first = first ? first : reward;
    if (reward && *reward != *first) {
      return false;
    }
  }
  return true;
}

// Advances a slot while its group is complete and has no variance: after a restart the groups of
// the next rounds may already be here.
void RolloutQueue::resolve(int64_t slot) {
  for (;;) {
    const int64_t group_id = current_group(slot);
    const auto found = groups_.find(group_id);
    const bool is_last = round_of(group_id) + 1 == rules_.refill_rounds;
    if (found == groups_.end() || is_last || !is_complete(found->second) ||
        !has_equal_rewards(found->second)) {
      return;
    }
    counters_.dropped_zero_variance += erase(group_id);
    ++counters_.refilled_groups;
    ++rounds_[slot];
    requests_.grant.push_back(current_group(slot));
  }
}

QueueRequests RolloutQueue::take_requests() { return std::exchange(requests_, {}); }

std::optional<std::vector<bridge::Rollout>> RolloutQueue::take(int64_t step) {
  if (step != next_step_) {
    throw std::invalid_argument("rollout queue: step " + std::to_string(step) + " taken, step " +
                                std::to_string(next_step_) + " is next");
  }
  const int64_t first = (step - 1) * rules_.prompts_per_step;
  const int64_t end = first + rules_.prompts_per_step;
  for (int64_t slot = first; slot < end; ++slot) {
    const auto found = groups_.find(current_group(slot));
    if (found == groups_.end() || !is_complete(found->second)) {
      return std::nullopt;
    }
  }
  std::vector<bridge::Rollout> rollouts;
  for (int64_t slot = first; slot < end; ++slot) {
    const int64_t group_id = current_group(slot);
    Group& group = groups_.at(group_id);
    counters_.kept_zero_variance += rules_.refill_rounds > 1 && has_equal_rewards(group) ? 1 : 0;
    for (auto& [sample, rollout] : group) {
      rollouts.push_back(std::move(rollout));
    }
    groups_.erase(group_id);
    for (int64_t round = round_of(group_id) + 1; round < rules_.refill_rounds; ++round) {
      counters_.dropped_unneeded += erase(slot + round * kRoundStride);
    }
    rounds_.erase(slot);
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
