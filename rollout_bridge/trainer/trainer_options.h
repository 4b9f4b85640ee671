// Options of the trainer's endpoint.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "rollout_bridge/base/limits.h"
#include "rollout_bridge/protocol/settings.h"
#include "rollout_bridge/trainer/admission.h"
#include "rollout_bridge/trainer/group_policy.h"
#include "rollout_bridge/trainer/journal.h"
#include "rollout_bridge/trainer/waiting_images.h"
#include "rollout_bridge/transport/curve_keys.h"

namespace ringside::bridge {

struct TrainerOptions {
  // Loopback TCP or ipc; any TCP address when `curve` is set. Port * or 0 picks a free port, see
  // rollout_address().
  std::string rollout_address = "tcp://127.0.0.1:*";
  std::string weights_address = "tcp://127.0.0.1:*";
  std::string run_id;         // not empty
  int64_t trainer_term = -1;  // from next_trainer_term(), >= 0
  // Earlier trainer starts whose rollouts may still be used: trainer_term -> the last version of
  // that start which the weights of this start descend from. Rollouts of any other earlier
  // trainer_term are refused.
  std::map<int64_t, int64_t> newest_of_term;
  JournalSettings journal;  // without room, rollouts are answered BUSY
  std::chrono::milliseconds heartbeat_interval{1000};
  std::chrono::milliseconds worker_timeout{
      10000};  // silence after which a worker is considered lost
  std::chrono::milliseconds progress_timeout{
      1800000};  // the worker's own code is silent, its socket alive
  std::chrono::milliseconds pause_timeout{3600000};  // longest pause of a worker
  std::chrono::milliseconds assignment_timeout{
      600000};               // then a sample is reassigned, see PROTOCOL.md
  int32_t max_attempts = 3;  // attempts at a sample that comes back aborted or failed
  // Limits on uncollected rollouts: rollouts granted or arrived, and bytes arrived or promised to
  // workers (see byte_budget.h). take() counts them from 0 again, because a step that is waited for
  // must become whole whatever its size.
  int64_t max_queued_rollouts = 4096;
  uint64_t max_queued_bytes = uint64_t{4} << 30;
  std::size_t max_workers = 256;
  int64_t window_bytes = 64 << 20;             // most unacknowledged rollout bytes of one worker
  ImageBounds images;                          // images of conversations that wait for a rollout
  std::optional<CurveServer> curve;            // absent: no encryption, this machine only
  std::shared_ptr<AdmissionPolicy> admission;  // null: accepts every valid rollout
  GroupPolicy policy;                          // its functions are set
  Settings settings;                           // sent in WELCOME and compared with HELLO's
  int32_t max_refused_in_row = 16;  // consecutive refused samples that end a worker's session
  Limits limits;
};

}  // namespace ringside::bridge
