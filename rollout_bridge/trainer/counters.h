// What a trainer's endpoint counts, cumulative since it was made.
#pragma once

#include <array>
#include <cstdint>

#include "rollout_bridge/base/result.h"

namespace ringside::bridge {

struct BridgeCounters {
  uint64_t received = 0;  // ROLLOUT messages that parsed
  uint64_t accepted = 0;
  uint64_t forgotten = 0;  // accepted, but their group was given up before pop() came to them
  uint64_t duplicate = 0;
  uint64_t requeued = 0;    // aborted or failed, asked for again
  uint64_t reassigned = 0;  // samples taken from a worker that did not answer in time
  uint64_t busy = 0;
  uint64_t lost_workers = 0;
  uint64_t left_workers = 0;  // by BYE
  uint64_t rollout_bytes = 0;
  uint64_t weight_bytes = 0;
  uint64_t shared_staged = 0;    // versions staged out of this machine's memory, without the wire
  uint64_t delta_staged = 0;     // versions staged as changes to the one before
  uint64_t delta_refetched = 0;  // tensors fetched whole because their changes did not verify
  uint64_t dropped_events = 0;
  uint64_t denied = 0;           // connections without the right keys
  uint64_t journal_refused = 0;  // rollouts answered BUSY because the journal had no room
  // Not counts but sizes, now and at most, in buffer bytes as on the wire.
  uint64_t queued_bytes = 0;                      // of rollouts that wait for pop()
  uint64_t promised_bytes = 0;                    // of the workers' windows
  uint64_t peak_bytes = 0;                        // of both together
  uint64_t journal_bytes = 0;                     // of the journal's file
  std::array<uint64_t, kReasonCount> rejected{};  // messages by Reason
  uint64_t messages = 0;                          // on the rollouts socket, taken or not
  // Requests on the weights socket, and those refused by Reason; some `gone` are no fault.
  uint64_t weight_requests = 0;
  std::array<uint64_t, kReasonCount> weight_rejected{};
};

}  // namespace ringside::bridge
