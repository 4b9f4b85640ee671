// What the desks of the trainer's side share: ledger, journal, weights, memory, counters.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "rollout_bridge/trainer/byte_budget.h"
#include "rollout_bridge/trainer/counters.h"
#include "rollout_bridge/trainer/group_ledger.h"
#include "rollout_bridge/trainer/held_out_samples.h"
#include "rollout_bridge/trainer/journal.h"
#include "rollout_bridge/trainer/published_weights.h"
#include "rollout_bridge/trainer/trainer_events.h"
#include "rollout_bridge/trainer/trainer_options.h"
#include "rollout_bridge/trainer/waiting_images.h"

namespace ringside::bridge {

using Clock = std::chrono::steady_clock;

struct TrainerParts {
  // Opens and replays the journal; its rollouts are not delivered yet.
  // Throws: as Journal does.
  explicit TrainerParts(const TrainerOptions& trainer_options);
  TrainerParts(const TrainerParts&) = delete;

  WorkDivision& work() { return ledger.work(); }
  const WorkDivision& work() const { return ledger.work(); }
  // Time does not go back.
  void advance(Clock::time_point time) { now = std::max(now, time); }
  // Counts a refused message.
  void count(Reason reason) { ++counters.rejected[static_cast<std::size_t>(reason)]; }

  TrainerOptions options;
  Journal journal;
  WaitingImages images;
  GroupLedger ledger;
  HeldOutSamples evaluation;
  PublishedWeights published;
  ByteBudget budget;
  BridgeCounters counters;
  TrainerEvents events;
  Clock::time_point now{};           // latest time passed in
  std::optional<std::string> ended;  // reason of the end of the run
};

}  // namespace ringside::bridge
