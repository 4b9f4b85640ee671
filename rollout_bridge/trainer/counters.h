// Counters of a trainer endpoint, cumulative since its construction.
#pragma once

#include <array>
#include <cstdint>

#include "rollout_bridge/base/result.h"

namespace ringside::bridge {

struct BridgeCounters {
  uint64_t received = 0;  // ROLLOUT messages that parsed
  uint64_t accepted = 0;
  uint64_t forgotten = 0;  // accepted, but their group was consumed before pop() returned them
  uint64_t duplicate = 0;
  uint64_t requeued = 0;    // samples aborted or failed, granted again
  uint64_t reassigned = 0;  // samples taken from a worker that did not answer in time
  uint64_t busy = 0;
  uint64_t lost_workers = 0;
  uint64_t left_workers = 0;  // sent BYE
  uint64_t rollout_bytes = 0;
  uint64_t weight_bytes = 0;
  uint64_t shared_staged = 0;    // versions read from shared memory instead of the network
  uint64_t delta_staged = 0;     // versions staged as a delta to an earlier one
  uint64_t delta_refetched = 0;  // tensors fetched dense because their delta did not verify
  uint64_t dropped_events = 0;
  uint64_t denied = 0;           // connections refused for their key
  uint64_t journal_refused = 0;  // rollouts answered BUSY because the journal had no room
  // Sizes, not counts: current or peak bytes, as on the wire.
  uint64_t queued_bytes = 0;                      // rollouts waiting for pop()
  uint64_t promised_bytes = 0;                    // sum of the workers' windows
  uint64_t peak_bytes = 0;                        // peak of queued + promised
  uint64_t journal_bytes = 0;                     // size of the journal file
  std::array<uint64_t, kReasonCount> rejected{};  // messages, by Reason
  uint64_t messages = 0;                          // on the rollouts socket, accepted or not
  // Requests on the weights socket, and the refused ones by Reason. `gone` also occurs in normal
  // operation: a worker asked for a version that a newer one has replaced.
  uint64_t weight_requests = 0;
  std::array<uint64_t, kReasonCount> weight_rejected{};
};

}  // namespace ringside::bridge
