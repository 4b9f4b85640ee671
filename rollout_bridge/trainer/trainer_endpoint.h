// The trainer's side of the bridge: takes rollouts in, hands work and weights out.
//
// Threads: one for rollouts and control, one for weight chunks (WeightServer); both are owned here.
// Every public method is thread-safe. None waits for a worker unless it takes a timeout. What ends
// a thread is rethrown by the next call of any method except the destructor and close().
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/protocol/settings.h"
#include "rollout_bridge/trainer/admission.h"
#include "rollout_bridge/trainer/counters.h"
#include "rollout_bridge/trainer/journal.h"
#include "rollout_bridge/transport/curve_keys.h"

namespace ringside::bridge {

struct TrainerOptions {
  // Loopback TCP or ipc, with `curve` any tcp; port * or 0 picks one, see rollout_address().
  std::string rollout_address = "tcp://127.0.0.1:*";
  std::string weights_address = "tcp://127.0.0.1:*";
  std::string run_id;         // not empty
  int64_t trainer_term = -1;  // from next_trainer_term(), >= 0
  // Earlier starts whose rollouts may still be used: trainer_term -> the last version of it that
  // the weights of this start descend from. Rollouts of any other earlier trainer_term are refused.
  std::map<int64_t, int64_t> newest_of_term;
  std::filesystem::path journal_directory;
  FsyncPolicy fsync = FsyncPolicy::kInterval;
  std::chrono::milliseconds fsync_interval{1000};
  uint64_t journal_compact_bytes = 64u * 1024 * 1024;
  uint64_t journal_max_bytes = uint64_t{16} << 30;  // beyond it rollouts wait; 0: no limit
  std::chrono::milliseconds heartbeat_interval{1000};
  std::chrono::milliseconds worker_timeout{10000};      // silence that makes a worker lost
  std::chrono::milliseconds progress_timeout{1800000};  // its own code silent, socket alive
  std::chrono::milliseconds pause_timeout{3600000};     // most that a worker may stay paused
  std::chrono::milliseconds assignment_timeout{
      600000};                         // then a sample is reassigned, see PROTOCOL.md
  int32_t max_attempts = 3;            // tries at a sample that comes back aborted or failed
  int64_t max_queued_rollouts = 4096;  // granted and not popped
  uint64_t max_queued_bytes = uint64_t{4}
                              << 30;  // queued and promised to workers, see byte_budget.h
  std::size_t max_workers = 256;
  int64_t window_bytes = 64 << 20;             // most unacknowledged rollout bytes of one worker
  std::optional<CurveServer> curve;            // absent: plain, for this machine only
  std::shared_ptr<AdmissionPolicy> admission;  // null: every valid rollout is taken
  Settings settings;                           // stated in WELCOME and compared with HELLO's
  int32_t max_refused_in_row = 16;             // refused samples of one worker that end its session
  Limits limits;
  std::shared_ptr<FileSystem> files = posix_file_system();  // the journal's
};

struct WorkerStatus {
  std::string worker_id;
  uint64_t incarnation = 0;
  std::string state;              // join, sync, ready, paused, quarantined, bye
  int64_t version = -1;           // installed and verified in this term
  int64_t in_flight_samples = 0;  // granted, not arrived
  int64_t queue_depth = 0;        // as the worker says
  int64_t window_bytes = 0;       // promised to it and not used up
  std::chrono::milliseconds silent_for{0};
};

struct BridgeEvent {
  std::string worker_id;
  std::string text;      // a sentence for the log
  bool routine = false;  // part of every healthy step
};

class TrainerEndpoint {
 public:
  // Opens the journal (its rollouts are the first that pop() returns), binds, starts the threads.
  // Throws std::invalid_argument on bad options, keys or an unsafe address, std::runtime_error or
  // std::system_error on journal trouble, BindError when an address is taken.
  explicit TrainerEndpoint(TrainerOptions options);
  ~TrainerEndpoint();  // close() with 2 s

  // The addresses that were bound, with the port filled in.
  const std::string& rollout_address() const;
  const std::string& weights_address() const;

  // Offers the weights to every worker, now and when it joins; replaces the ones before. Throws
  // std::invalid_argument on another run or term, or a version that does not rise.
  void publish(std::shared_ptr<const WeightSnapshot> snapshot);

  // Queues work. Throws std::invalid_argument like GroupLedger::grant, and for a group larger than
  // max_queued_rollouts (it could never be handed out). Samples that are in the journal already are
  // not asked for again.
  void grant(const std::vector<GroupGrant>& groups);

  // The next rollout, journalled, acknowledged and unique; nullopt after `timeout`.
  std::optional<Rollout> pop(std::chrono::milliseconds timeout);

  // The groups are part of a durable checkpoint, or will never be trained on: drops their rollouts
  // from the journal; whatever still arrives of them is a duplicate.
  void mark_consumed(std::span<const int64_t> group_ids);

  // Waits until `min_workers` live workers have installed `version` or a later one of this term.
  bool wait_for_commit(int64_t version, std::size_t min_workers, std::chrono::milliseconds timeout);

  std::vector<WorkerStatus> workers() const;
  BridgeCounters counters() const;
  // What happened since the last call, oldest first; the oldest are dropped (and counted) beyond
  // 1024.
  std::vector<BridgeEvent> drain_events();

  // Tells every worker that the run is over; workers that join later are told as well.
  void end(const std::string& reason);
  // Waits until messages to workers are on their way or `deadline` has passed, stops the threads.
  // Idempotent. pop() returns nullopt at once afterwards.
  void close(std::chrono::milliseconds deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringside::bridge
