#include "rl/rollouts/source_counters.h"

#include <string>
#include <utility>

namespace ringside::rl {
namespace {

void append_bridge_metrics(Metrics& metrics, const bridge::BridgeCounters& counters) {
  const std::pair<const char*, uint64_t> named[] = {
      {"bridge/received", counters.received},
      {"bridge/accepted", counters.accepted},
      {"bridge/evaluated", counters.evaluated},
      {"bridge/forgotten", counters.forgotten},
      {"bridge/duplicates", counters.duplicate},
      {"bridge/requeued", counters.requeued},
      {"bridge/reassigned", counters.reassigned},
      {"bridge/taken_over", counters.taken_over},
      {"bridge/busy", counters.busy},
      {"bridge/workers", counters.ready_workers},
      {"bridge/lost_workers", counters.lost_workers},
      {"bridge/left_workers", counters.left_workers},
      {"bridge/denied", counters.denied},
      {"bridge/bytes", counters.rollout_bytes},
      {"bridge/queued_bytes", counters.queued_bytes},
      {"bridge/promised_bytes", counters.promised_bytes},
      {"bridge/peak_bytes", counters.peak_bytes},
      {"bridge/journal_bytes", counters.journal_bytes},
      {"bridge/journal_refused", counters.journal_refused},
      {"weights/bytes", counters.weight_bytes},
      {"weights/shared_staged", counters.shared_staged},
      {"weights/delta_staged", counters.delta_staged},
      {"weights/delta_refetched", counters.delta_refetched}};
  for (const auto& [name, count] : named) {
    metrics.emplace_back(name, static_cast<double>(count));
  }
  for (std::size_t i = 0; i < counters.rejected.size(); ++i) {
    if (counters.rejected[i] > 0) {
      metrics.emplace_back(
          std::string("bridge/rejected/") + bridge::reason_name(static_cast<bridge::Reason>(i)),
          static_cast<double>(counters.rejected[i]));
    }
  }
}

}  // namespace

void append_source_metrics(Metrics& metrics, const SourceCounters& counters) {
  const std::pair<const char*, int64_t> named[] = {
      {"accepted", counters.accepted},
      {"duplicates", counters.duplicates},
      {"dropped_stale", counters.dropped_stale},
      {"dropped_out_of_window", counters.dropped_out_of_window},
      {"dropped_zero_variance", counters.dropped_zero_variance},
      {"dropped_unneeded", counters.dropped_unneeded},
      {"refilled_groups", counters.refilled_groups},
      {"kept_zero_variance", counters.kept_zero_variance},
      {"failed_samples", counters.failed_samples},
      {"stragglers", counters.stragglers},
      {"retried_samples", counters.retried_samples},
      {"waiting", counters.waiting}};
  for (const auto& [name, count] : named) {
    metrics.emplace_back(std::string("rollouts/") + name, static_cast<double>(count));
  }
  if (counters.pools) {
    const std::pair<const char*, int64_t> pools[] = {{"easy", counters.pools->easy},
                                                     {"middle", counters.pools->middle},
                                                     {"hard", counters.pools->hard},
                                                     {"unmeasured", counters.pools->unmeasured}};
    for (const auto& [name, prompts] : pools) {
      metrics.emplace_back(std::string("curriculum/") + name, static_cast<double>(prompts));
    }
  }
  if (counters.bridge) {
    append_bridge_metrics(metrics, *counters.bridge);
  }
}

}  // namespace ringside::rl
