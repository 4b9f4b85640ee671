#include "rl/rollouts/rollout_intake.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ringside::rl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kCloseDeadline{5000};
constexpr milliseconds kAlone{3000};       // time without a worker before it is logged
constexpr std::size_t kMaxMessages = 256;  // between two drains; further messages are dropped

bridge::TrainerOptions with_rules(bridge::TrainerOptions options, const QueueRules& rules) {
  options.newest_of_term = rules.newest_of_term;
  // Capacity for all rollouts that may be in flight, and for a replayed journal as well.
  options.max_queued_rollouts =
      std::max<int64_t>(options.max_queued_rollouts,
                        2 * (1 + rules.max_staleness) * rules.prompts_per_step * rules.group_size);
  return options;
}

std::string versions_of(const bridge::Rollout& rollout) {
  int64_t oldest = rollout.versions.empty() ? -1 : rollout.versions.front().version;
  int64_t newest = oldest;
  for (const bridge::VersionSpan& span : rollout.versions) {
    oldest = std::min(oldest, span.version);
    newest = std::max(newest, span.version);
  }
  return "versions " + std::to_string(oldest) + " to " + std::to_string(newest) +
         " of trainer_term " + std::to_string(rollout.trainer_term);
}

}  // namespace

RolloutIntake::RolloutIntake(bridge::TrainerOptions options, QueueRules rules, int64_t last_step)
    : queue_(rules, rules.restored_version + 1),
      last_step_(last_step),
      granted_to_step_(rules.restored_version),
      consumed_to_step_(rules.restored_version),
      endpoint_(with_rules(std::move(options), rules)) {
  if (last_step > kRoundStride / rules.prompts_per_step) {
    throw std::invalid_argument(std::to_string(last_step) + " steps of " +
                                std::to_string(rules.prompts_per_step) + " prompts, limit " +
                                std::to_string(kRoundStride) + " prompts");
  }
}

void RolloutIntake::publish(std::shared_ptr<const bridge::WeightSnapshot> snapshot,
                            int64_t next_step) {
  const int64_t version = snapshot->manifest.version;
  endpoint_.publish(std::move(snapshot));
  queue_.published(version);
  // The rollouts in training stay until the step is done: a version may be published late.
  const auto trained = std::find_if(unrestorable_.begin(), unrestorable_.end(), [&](int64_t slot) {
    return queue_.step_of(slot) >= next_step;
  });
  if (trained != unrestorable_.begin()) {
    endpoint_.mark_consumed(all_rounds({unrestorable_.begin(), trained}));
    unrestorable_.erase(unrestorable_.begin(), trained);
  }
  grant_to_step(std::min(last_step_, next_step + queue_.rules().max_staleness));
}

std::optional<std::vector<bridge::Rollout>> RolloutIntake::poll(int64_t step,
                                                                milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const int64_t kept_before = queue_.counters().kept_zero_variance;
    if (auto rollouts = queue_.take(step)) {
      log_where_refill_gave_up(step, queue_.counters().kept_zero_variance - kept_before);
      note_unrestorable(*rollouts);
      return rollouts;
    }
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left <= milliseconds::zero()) {
      return std::nullopt;
    }
    if (auto rollout = endpoint_.pop(left)) {
      admit(std::move(*rollout));
    }
  }
}

void RolloutIntake::log_where_refill_gave_up(int64_t step, int64_t slots) {
  if (slots == 0) {
    return;
  }
  say("refill gave up on " + std::to_string(slots) + " of " +
      std::to_string(queue_.rules().prompts_per_step) + " prompts of step " + std::to_string(step) +
      ": the rewards of all " + std::to_string(queue_.rules().refill_rounds) +
      " prompts tried are equal within their groups, and the last one teaches nothing; raise "
      "algorithm.dynamic_sampling_rounds, or look at rollout.reward and the data");
}

// A restart resumes from the last checkpoint, or from a later one that consumes the group. In the
// first case the versions made since that checkpoint are lost, and a rollout sampled from them
// makes its whole group unusable.
void RolloutIntake::note_unrestorable(const std::vector<bridge::Rollout>& step) {
  for (const bridge::Rollout& rollout : step) {
    const int64_t slot = slot_of(rollout.group_id);
    const bool lost = rollout.trainer_term == queue_.rules().trainer_term &&
                      std::any_of(rollout.versions.begin(), rollout.versions.end(),
                                  [&](const bridge::VersionSpan& span) {
                                    return span.version > consumed_to_step_;
                                  });
    if (lost && (unrestorable_.empty() || unrestorable_.back() != slot)) {
      unrestorable_.push_back(slot);
    }
  }
}

// Every round of every slot, granted or not: the journal stores one contiguous range per round
// cheaply.
std::vector<int64_t> RolloutIntake::all_rounds(const std::vector<int64_t>& slots) const {
  std::vector<int64_t> groups;
  for (int64_t round = 0; round < queue_.rules().refill_rounds; ++round) {
    for (const int64_t slot : slots) {
      groups.push_back(slot + round * kRoundStride);
    }
  }
  return groups;
}

bridge::GroupGrant RolloutIntake::grant_of(int64_t group_id) const {
  // Groups of earlier steps are assigned first, even if they are granted later.
  return {group_id, static_cast<int32_t>(queue_.rules().group_size), queue_.min_version(group_id),
          queue_.step_of(group_id)};
}

void RolloutIntake::grant_to_step(int64_t step) {
  const int64_t per_step = queue_.rules().prompts_per_step;
  std::vector<bridge::GroupGrant> grants;
  for (int64_t slot = granted_to_step_ * per_step; slot < step * per_step; ++slot) {
    grants.push_back(grant_of(slot));
  }
  endpoint_.grant(grants);
  granted_to_step_ = std::max(granted_to_step_, step);
}

void RolloutIntake::admit(bridge::Rollout rollout) {
  const std::string what = "rollout " + rollout.rollout_id + " of group " +
                           std::to_string(rollout.group_id) + ", " + versions_of(rollout);
  const int64_t step = queue_.step_of(rollout.group_id);
  const int32_t group_size = rollout.group_size;
  switch (queue_.add(std::move(rollout))) {
    case Admission::kStale:
      say("dropped " + what + ": too old for step " + std::to_string(step) +
          ", or lost with a restart; its whole group is sampled again");
      break;
    case Admission::kWrongSize:
      say("dropped " + what + ": of a group of " + std::to_string(group_size) + ", groups have " +
          std::to_string(queue_.rules().group_size) + "; its whole group is sampled again");
      break;
    case Admission::kTooEarly:
      say("dropped " + what + ": sampled before the restart, and step " + std::to_string(step) +
          " is beyond the current window");
      break;
    case Admission::kUnasked:
      say("dropped " + what + ": this round of its slot is not needed");
      break;
    case Admission::kAccepted:
    case Admission::kDuplicate:
    case Admission::kFinished:
      break;
  }
  const QueueRequests requests = queue_.take_requests();
  if (!requests.forget.empty()) {
    endpoint_.mark_consumed(requests.forget);
  }
  std::vector<bridge::GroupGrant> grants;
  for (const int64_t group_id : requests.grant) {
    // Groups of later steps are granted with their step.
    if (queue_.step_of(group_id) <= granted_to_step_) {
      grants.push_back(grant_of(group_id));
    }
  }
  if (!grants.empty()) {
    endpoint_.grant(grants);
  }
}

void RolloutIntake::say(std::string message) {
  const std::lock_guard lock(messages_mutex_);
  if (messages_.size() < kMaxMessages) {
    messages_.push_back(std::move(message));
  }
}

std::vector<std::string> RolloutIntake::drain_messages() {
  const auto events = endpoint_.drain_events();
  const bool nobody = endpoint_.workers().empty();
  const std::lock_guard lock(messages_mutex_);
  std::vector<std::string> messages = std::exchange(messages_, {});
  for (const bridge::BridgeEvent& event : events) {
    if (!event.routine) {
      messages.push_back(event.text);
    }
  }
  const auto now = std::chrono::steady_clock::now();
  if (finished_ || !nobody) {
    alone_since_.reset();
    alone_logged_ = false;
  } else if (!alone_since_) {
    alone_since_ = now;
  } else if (!alone_logged_ && now - *alone_since_ >= kAlone) {
    messages.push_back("no rollout worker is connected; waiting at " + endpoint_.rollout_address());
    alone_logged_ = true;
  }
  return messages;
}

void RolloutIntake::checkpointed(int64_t step) {
  const int64_t per_step = queue_.rules().prompts_per_step;
  std::vector<int64_t> slots;
  for (int64_t slot = consumed_to_step_ * per_step; slot < step * per_step; ++slot) {
    slots.push_back(slot);
  }
  endpoint_.mark_consumed(all_rounds(slots));
  consumed_to_step_ = step;
}

void RolloutIntake::finish() {
  {
    const std::lock_guard lock(messages_mutex_);
    finished_ = true;
  }
  endpoint_.end("the run is finished");
  endpoint_.close(kCloseDeadline);
}

SourceCounters RolloutIntake::counters() const {
  SourceCounters counters = queue_.counters();
  const bridge::BridgeCounters bridge = endpoint_.counters();
  counters.duplicates += static_cast<int64_t>(bridge.duplicate);
  counters.retried_samples = static_cast<int64_t>(bridge.requeued);
  counters.waiting = queue_.size();
  counters.bridge = bridge;
  return counters;
}

}  // namespace ringside::rl
