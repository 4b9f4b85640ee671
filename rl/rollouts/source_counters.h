// What became of the rollouts that reached a trainer start, cumulative since that start.
// Torch-free.
#pragma once

#include <cstdint>
#include <optional>

#include "rl/report/metrics.h"
#include "rollout_bridge/trainer/counters.h"

namespace ringside::rl {

// Of the `accepted` rollouts each ends in one of: a step's batch, dropped_siblings,
// dropped_zero_variance, dropped_unneeded, or still waits. The other dropped_* and duplicates were
// never accepted. Each of bridge->accepted and of a replayed journal is accepted, dropped_stale,
// dropped_out_of_window, a duplicate or bridge->forgotten, or still waits in the bridge.
struct SourceCounters {
  int64_t accepted = 0;    // rollouts taken in for training
  int64_t duplicates = 0;  // rollouts of a sample that was in already
  int64_t dropped_stale =
      0;  // rollouts of weights too old or that a restart has wiped out, or of another group size
  int64_t dropped_siblings = 0;  // rollouts of the group of such a one
  int64_t dropped_out_of_window =
      0;  // rollouts of a step that is over, or not begun, or of a prompt nobody asked for
  int64_t dropped_zero_variance = 0;  // rollouts of groups whose rewards were all equal
  int64_t dropped_unneeded =
      0;  // rollouts of a later prompt for a slot that an earlier one has filled
  int64_t regranted_groups =
      0;  // groups asked for again because one of their rollouts was dropped so
  int64_t refilled_groups = 0;     // groups asked for in place of one whose rewards were all equal
  int64_t kept_zero_variance = 0;  // groups trained on with all rewards equal: the last round's
  int64_t failed_samples = 0;      // rollouts accepted as error or aborted, their tries used up
  int64_t retried_samples =
      0;                // samples asked for again because they came back as error or aborted
  int64_t waiting = 0;  // accepted rollouts that no step has taken yet
  double publish_seconds =
      0;  // that handing over the newest weights held the training up; not cumulative
  std::optional<bridge::BridgeCounters> bridge;  // none where rollouts come from a file
};

// As rollouts/accepted, rollouts/dropped_stale and so on; what the bridge counted as
// bridge/lost_workers, bridge/duplicates and so on, its refusals as bridge/rejected/REASON where
// there were any, its weights as weights/bytes, weights/delta_staged and weights/delta_refetched;
// publish_seconds as time/publish.
void append_source_metrics(Metrics& metrics, const SourceCounters& counters);

}  // namespace ringside::rl
