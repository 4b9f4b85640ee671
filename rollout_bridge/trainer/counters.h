// Counters of a trainer endpoint, cumulative since its construction.
#pragma once

#include <array>
#include <cstdint>

#include "rollout_bridge/base/result.h"

namespace ringside::bridge {

// What became of delivered rollouts. Every one ends in exactly one of: taken for a step,
// dropped_zero_variance, dropped_unneeded, BridgeCounters::forgotten, or waiting.
struct GroupCounters {
  int64_t delivered = 0;              // from workers and from the journal
  int64_t failed = 0;                 // of these: aborted or failed at the last attempt, or
  int64_t stragglers = 0;             // stand-ins of samples that did not come in time
  int64_t waiting = 0;                // not a count: delivered and not taken now
  int64_t dropped_zero_variance = 0;  // of groups that taught nothing and were replaced
  int64_t dropped_unneeded = 0;       // of a later round than the one that was taken
  int64_t refilled_groups = 0;        // granted in place of groups that taught nothing
  int64_t kept_zero_variance = 0;     // groups of the last round that teach nothing, taken
  // Rollouts of the journal that were not delivered at the start.
  int64_t replayed_stale = 0;  // too old, of lost weights, or of another group size
  int64_t replayed_out_of_steps =
      0;  // of a step that is over, or of a group that no step trains on
};

struct BridgeCounters {
  uint64_t received = 0;  // ROLLOUT messages that parsed
  uint64_t accepted = 0;
  uint64_t evaluated = 0;  // accepted for an evaluation; not in `accepted`
  uint64_t forgotten = 0;  // delivered, but their group was consumed before they were taken
  uint64_t duplicate = 0;
  uint64_t requeued = 0;    // samples aborted or failed, granted again
  uint64_t reassigned = 0;  // samples taken from a worker that did not answer in time
  uint64_t taken_over = 0;  // late samples given to an idle worker
  uint64_t busy = 0;
  uint64_t lost_workers = 0;
  uint64_t left_workers = 0;  // sent BYE
  uint64_t rollout_bytes = 0;
  uint64_t images = 0;          // IMAGE messages that were stored
  uint64_t image_bytes = 0;     // of these
  uint64_t unknown_images = 0;  // rollouts answered UNKNOWN_IMAGES
  uint64_t dropped_images = 0;  // for want of room, while no accepted rollout named them
  uint64_t weight_bytes = 0;
  uint64_t shared_staged = 0;    // versions read from shared memory instead of the network
  uint64_t delta_staged = 0;     // versions staged as a delta to an earlier one
  uint64_t delta_refetched = 0;  // tensors fetched dense because their delta did not verify
  uint64_t dropped_events = 0;
  uint64_t denied = 0;           // connections refused for their key
  uint64_t journal_refused = 0;  // rollouts answered BUSY because the journal had no room
  uint64_t ready_workers = 0;    // not a count: sessions that take work now
  // Sizes, not counts: current or peak bytes, as on the wire.
  uint64_t queued_bytes = 0;                      // uncollected rollouts
  uint64_t promised_bytes = 0;                    // sum of the workers' windows
  uint64_t peak_bytes = 0;                        // peak of queued + promised
  uint64_t journal_bytes = 0;                     // size of the journal file
  uint64_t waiting_image_bytes = 0;               // images that no accepted rollout names
  std::array<uint64_t, kReasonCount> rejected{};  // messages, by Reason
  uint64_t messages = 0;                          // on the rollouts socket, accepted or not
  // Requests on the weights socket, and the refused ones by Reason. `gone` also occurs in normal
  // operation: a worker asked for a version that a newer one has replaced.
  uint64_t weight_requests = 0;
  std::array<uint64_t, kReasonCount> weight_rejected{};
  GroupCounters groups;
};

}  // namespace ringside::bridge
