#include "rl/rollouts/rollout_intake.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ringside::rl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kCloseDeadline{5000};
constexpr milliseconds kAlone{3000};       // time without a worker before it is logged
constexpr milliseconds kAgain{30'000};     // what lasts is logged again
constexpr std::size_t kMaxMessages = 256;  // between two drains; further messages are dropped

bridge::TrainerOptions with_rules(bridge::TrainerOptions options, const StepRules& rules) {
  options.policy = step_policy(rules);
  // Capacity for all rollouts that may be in flight, and for a replayed journal as well.
  options.max_queued_rollouts =
      std::max<int64_t>(options.max_queued_rollouts,
                        2 * (1 + rules.max_staleness) * rules.prompts_per_step * rules.group_size);
  return options;
}

}  // namespace

RolloutIntake::RolloutIntake(bridge::TrainerOptions options, const StepRules& rules,
                             int64_t last_step)
    : rules_(rules),
      journal_(options.journal.directory),
      last_step_(last_step),
      alone_(kAlone, kAgain),
      no_room_(kAgain),
      endpoint_(with_rules(std::move(options), rules)) {
  if (last_step > kRoundStride / rules.prompts_per_step) {
    throw std::invalid_argument(std::to_string(last_step) + " steps of " +
                                std::to_string(rules.prompts_per_step) + " prompts, limit " +
                                std::to_string(kRoundStride) + " prompts");
  }
}

void RolloutIntake::publish(std::shared_ptr<const bridge::WeightSnapshot> snapshot,
                            int64_t next_step) {
  endpoint_.publish(std::move(snapshot));
  endpoint_.open_steps(next_step, std::min(last_step_, next_step + rules_.max_staleness));
}

std::optional<std::vector<bridge::FlatRollout>> RolloutIntake::poll(int64_t step,
                                                                    milliseconds timeout) {
  auto rollouts = endpoint_.take(step, timeout);
  if (rollouts) {
    log_where_refill_gave_up(step);
  }
  return rollouts;
}

void RolloutIntake::log_where_refill_gave_up(int64_t step) {
  const int64_t now = endpoint_.counters().groups.kept_zero_variance;
  const int64_t slots = now - std::exchange(gave_up_, now);
  if (slots == 0) {
    return;
  }
  log_event("refill gave up on " + std::to_string(slots) + " of " +
            std::to_string(rules_.prompts_per_step) + " prompts of step " + std::to_string(step) +
            ": the rewards of all " + std::to_string(rules_.refill_rounds) +
            " prompts tried are equal within their groups, and the last one teaches nothing; raise "
            "algorithm.dynamic_sampling_rounds, or look at rollout.reward and the data");
}

void RolloutIntake::log_event(std::string message) {
  const std::lock_guard lock(messages_mutex_);
  if (messages_.size() < kMaxMessages) {
    messages_.push_back({std::move(message)});
  }
}

std::vector<IntakeMessage> RolloutIntake::drain_messages(
    std::chrono::steady_clock::time_point now) {
  const auto events = endpoint_.drain_events();
  const bool nobody = endpoint_.workers().empty();
  const uint64_t refused = endpoint_.counters().journal_refused;
  const std::lock_guard lock(messages_mutex_);
  std::vector<IntakeMessage> messages = std::exchange(messages_, {});
  for (const bridge::BridgeEvent& event : events) {
    if (event.kind != bridge::EventKind::kRoutine) {
      messages.push_back({event.text, event.kind == bridge::EventKind::kTrouble});
    }
  }
  add_waits(nobody && !finished_, refused, now, messages);
  return messages;
}

void RolloutIntake::add_waits(bool nobody, uint64_t refused,
                              std::chrono::steady_clock::time_point now,
                              std::vector<IntakeMessage>& messages) {
  if (!nobody) {
    alone_.reset();
  } else if (alone_.is_due(now)) {
    messages.push_back(
        {"no rollout worker is connected; waiting at " + endpoint_.rollout_address()});
  }
  if (no_room_.is_due(refused, now)) {
    messages.push_back({"rollouts still wait for room in " + journal_.string() +
                            "; expected free space on its disk (`df`). Workers send them again",
                        /*is_trouble=*/true});
  }
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
  const bridge::BridgeCounters bridge = endpoint_.counters();
  const bridge::GroupCounters& groups = bridge.groups;
  SourceCounters counters;
  counters.accepted = groups.delivered;
  counters.duplicates = static_cast<int64_t>(bridge.duplicate);
  counters.dropped_stale = groups.replayed_stale;
  counters.dropped_out_of_window = groups.replayed_out_of_steps;
  counters.dropped_zero_variance = groups.dropped_zero_variance;
  counters.dropped_unneeded = groups.dropped_unneeded;
  counters.refilled_groups = groups.refilled_groups;
  counters.kept_zero_variance = groups.kept_zero_variance;
  counters.failed_samples = groups.failed;
  counters.stragglers = groups.stragglers;
  counters.retried_samples = static_cast<int64_t>(bridge.requeued);
  counters.waiting = groups.waiting;
  counters.bridge = bridge;
  return counters;
}

}  // namespace ringside::rl
