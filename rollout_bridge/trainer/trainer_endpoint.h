// Trainer endpoint of the bridge: receives rollouts, grants work, publishes weights.
//
// Owns two threads: one for rollouts and control, one for weight chunks (WeightServer). An
// exception that ends a thread is rethrown by the next call of any method except the addresses, the
// destructor and close().
//
// Blocks: only methods with a timeout wait for a worker.
// Thread safety: every public method.
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
#include "rollout_bridge/trainer/group_policy.h"
#include "rollout_bridge/trainer/held_out_samples.h"
#include "rollout_bridge/trainer/journal.h"
#include "rollout_bridge/transport/curve_keys.h"
#include "rollout_bridge/weights/snapshot.h"

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
  std::filesystem::path journal_directory;
  FsyncPolicy fsync = FsyncPolicy::kInterval;
  std::chrono::milliseconds fsync_interval{1000};
  uint64_t journal_compact_bytes = 64u * 1024 * 1024;
  uint64_t journal_max_bytes = uint64_t{16}
                               << 30;  // above it, rollouts are answered BUSY; 0: no limit
  std::chrono::milliseconds heartbeat_interval{1000};
  std::chrono::milliseconds worker_timeout{
      10000};  // silence after which a worker is considered lost
  std::chrono::milliseconds progress_timeout{
      1800000};  // the worker's own code is silent, its socket alive
  std::chrono::milliseconds pause_timeout{3600000};  // longest pause of a worker
  std::chrono::milliseconds assignment_timeout{
      600000};               // then a sample is reassigned, see PROTOCOL.md
  int32_t max_attempts = 3;  // attempts at a sample that comes back aborted or failed
  // Limits of what arrives while the owner does not look for it: rollouts granted or arrived, and
  // bytes arrived or promised to workers (see byte_budget.h). take() counts them from 0 again,
  // because a step that is waited for must become whole whatever its size.
  int64_t max_queued_rollouts = 4096;
  uint64_t max_queued_bytes = uint64_t{4} << 30;
  std::size_t max_workers = 256;
  int64_t window_bytes = 64 << 20;             // most unacknowledged rollout bytes of one worker
  std::optional<CurveServer> curve;            // absent: no encryption, this machine only
  std::shared_ptr<AdmissionPolicy> admission;  // null: accepts every valid rollout
  std::shared_ptr<const GroupPolicy> policy;   // null: no steps; see GroupLedger
  Settings settings;                           // sent in WELCOME and compared with HELLO's
  int32_t max_refused_in_row = 16;  // consecutive refused samples that end a worker's session
  Limits limits;
  std::shared_ptr<FileSystem> files = posix_file_system();  // file system of the journal
};

struct WorkerStatus {
  std::string worker_id;
  uint64_t incarnation = 0;
  std::string state;              // join, sync, ready, paused, quarantined, bye
  int64_t version = -1;           // installed and verified in this term
  int64_t in_flight_samples = 0;  // granted, not delivered
  int64_t queue_depth = 0;        // as the worker reports it
  int64_t window_bytes = 0;       // promised and not used up
  std::chrono::milliseconds silent_for{0};
};

enum class EventKind {
  kRoutine,  // occurs in every healthy step
  kNews,
  kTrouble,  // the run waits until somebody helps
};

struct BridgeEvent {
  std::string worker_id;
  std::string text;  // text for the log
  EventKind kind = EventKind::kNews;
};

// How far an evaluation is, and who can take part.
struct EvaluationProgress {
  int64_t samples = 0;     // 0: no evaluation is open
  int64_t missing = 0;     // of these
  int64_t workers = 0;     // connected
  int64_t evaluating = 0;  // of these, with the trainer's held-out prompts
};

class TrainerEndpoint {
 public:
  // Opens the journal, binds the sockets and starts the threads. The journal's rollouts count as
  // delivered.
  // Throws: std::invalid_argument on bad options, keys or an unsafe address; std::runtime_error or
  // std::system_error on journal failures; BindError when an address is in use.
  explicit TrainerEndpoint(TrainerOptions options);
  ~TrainerEndpoint();  // close() with a deadline of 2 s

  // The bound addresses, with the port filled in.
  const std::string& rollout_address() const;
  const std::string& weights_address() const;

  // Offers the weights to every worker, now and when it joins. Replaces the weights published
  // before.
  // Throws: std::invalid_argument on another run or term, or a version that does not rise.
  void publish(std::shared_ptr<const WeightSnapshot> snapshot);

  // Queues work. Samples that are in the journal already are not granted again.
  // Throws: std::invalid_argument like GroupLedger::grant, and for a group larger than
  // max_queued_rollouts, which could never be granted.
  void grant(const std::vector<GroupGrant>& groups);

  // For owners with a GroupPolicy, which train by steps.

  // `next_step` is trained next, and groups of the steps up to `last_step` may be sampled: grants
  // those that are not granted yet. Drops from the journal what was taken for steps before
  // `next_step` and no restart can use.
  // Throws: std::logic_error without a policy; what grant() throws.
  void open_steps(int64_t next_step, int64_t last_step);
  // The rollouts of `step`, whole groups in order; each is journalled, acknowledged and unique.
  // nullopt if they are not complete after `timeout`. Steps are taken in order.
  // Throws: std::logic_error without a policy; std::invalid_argument for another step than the
  // next.
  std::optional<std::vector<Rollout>> take(int64_t step, std::chrono::milliseconds timeout);
  // Call when the checkpoint of `step` is on disk: consumes the groups of the steps up to it.
  void checkpointed(int64_t step);

  // Evaluation: samples of held-out prompts under the weights published last. They are no part of
  // any step, and are neither journalled nor returned by take() and pop().

  // Grants `samples` completions of each held-out prompt 0 ... prompts - 1, before all other work,
  // to the workers that stated the trainer's Settings::held_out. Ends the evaluation before.
  // Throws: std::invalid_argument without published weights or Settings::held_out, and for numbers
  // below 1.
  void open_evaluation(int64_t prompts, int32_t samples);
  // All samples, in order of prompt and sample; the evaluation is then over. nullopt if they are
  // not complete after `timeout`.
  std::optional<std::vector<HeldOutSample>> take_evaluation(std::chrono::milliseconds timeout);
  // Ends the evaluation: missing samples are not made any more, late ones are duplicates.
  void end_evaluation();
  EvaluationProgress evaluation() const;

  // For owners without a policy, which grant and consume single groups.

  // The next rollout in order of arrival. nullopt after `timeout`.
  std::optional<Rollout> pop(std::chrono::milliseconds timeout);
  // Marks groups that a durable checkpoint contains, or that will never be trained on. Drops their
  // rollouts from the journal. Rollouts that still arrive for them are duplicates.
  void mark_consumed(std::span<const int64_t> group_ids);

  // Waits until `min_workers` live workers have installed `version` or a later one of this term.
  // Returns false after `timeout`.
  bool wait_for_commit(int64_t version, std::size_t min_workers, std::chrono::milliseconds timeout);

  // State of every worker that has a session, and figures counted since the endpoint was opened.
  std::vector<WorkerStatus> workers() const;
  BridgeCounters counters() const;
  // Events since the last call, oldest first. Above 1024 the oldest are dropped and counted.
  std::vector<BridgeEvent> drain_events();

  // Tells every worker that the run has ended, also workers that join later.
  void end(const std::string& reason);
  // Waits until pending messages to workers are sent or `deadline` has passed, then stops the
  // threads. Idempotent. pop(), take() and wait_for_commit() then no longer wait; what has arrived
  // is still returned.
  void close(std::chrono::milliseconds deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringside::bridge
