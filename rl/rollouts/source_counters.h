// Counters of the rollouts that reached this start of the trainer, cumulative since that start.
// Torch-free.
#pragma once

#include <cstdint>
#include <optional>

#include "rl/data/curriculum.h"
#include "rl/report/metrics.h"
#include "rollout_bridge/trainer/counters.h"

namespace ringside::rl {

// Every accepted rollout ends in exactly one of: a step's batch, dropped_zero_variance,
// dropped_unneeded, bridge->forgotten, or waiting. dropped_stale, dropped_out_of_window and
// duplicates were never accepted.
struct SourceCounters {
  int64_t accepted = 0;    // rollouts accepted for training, from workers and from the journal
  int64_t duplicates = 0;  // rollouts of a sample that was already accepted
  // Rollouts of the journal from weights that are too old or lost in a restart, or of another group
  // size. Those of workers are in bridge->rejected.
  int64_t dropped_stale = 0;
  // Rollouts of the journal of a step that is over, or of a prompt that is tried no more.
  int64_t dropped_out_of_window = 0;
  int64_t dropped_zero_variance = 0;  // rollouts of groups whose rewards were all equal
  // Rollouts of a later prompt for a slot that an earlier prompt filled.
  int64_t dropped_unneeded = 0;
  int64_t refilled_groups = 0;     // groups granted as replacements for zero-variance groups
  int64_t kept_zero_variance = 0;  // groups of the last round trained on with all rewards equal
  int64_t failed_samples = 0;      // rollouts accepted as error or aborted after the last retry
  int64_t stragglers = 0;          // of these: in place of samples that did not come in time
  int64_t retried_samples = 0;     // samples retried because they were returned as error or aborted
  int64_t waiting = 0;             // accepted rollouts that are in no step yet
  std::optional<bridge::BridgeCounters> bridge;  // nullopt for rollouts from a file
  std::optional<PoolSizes> pools{};              // with data.curriculum
};

// Appends the counters as metrics: rollouts/accepted, rollouts/dropped_stale and so on; the
// bridge's counters as bridge/workers (ready now), bridge/lost_workers and so on; its rejections as
// bridge/rejected/REASON if there are any; its weight counters as weights/bytes,
// weights/delta_staged and weights/delta_refetched; the curriculum's pools as curriculum/easy and
// so on.
void append_source_metrics(Metrics& metrics, const SourceCounters& counters);

}  // namespace ringside::rl
