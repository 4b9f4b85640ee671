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
#include <string>
#include <vector>

#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/trainer/counters.h"
#include "rollout_bridge/trainer/held_out_samples.h"
#include "rollout_bridge/trainer/trainer_events.h"
#include "rollout_bridge/trainer/trainer_options.h"
#include "rollout_bridge/trainer/worker_status.h"
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::bridge {

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

  // `next_step` is trained next, and groups of the steps up to `last_step` may be sampled: grants
  // those that are not granted yet. Drops from the journal what was taken for steps before
  // `next_step` and no restart can use.
  // Samples that are in the journal already are not granted again.
  // Throws: std::invalid_argument like GroupLedger::grant, and for a group larger than
  // max_queued_rollouts, which could never be granted.
  void open_steps(int64_t next_step, int64_t last_step);
  // The messages of the rollouts of `step`, whole groups in order; each was decoded, validated,
  // admitted, journalled and acknowledged, and is unique. Then the IMAGEs of the images that they
  // name, each once. See read_batch().
  // nullopt if they are not complete after `timeout`. Steps are taken in order.
  // Throws: std::invalid_argument for another step than the next.
  std::optional<std::vector<FlatRollout>> take(int64_t step, std::chrono::milliseconds timeout);
  // Call when the checkpoint of `step` is on disk: consumes the groups of the steps up to it.
  void checkpointed(int64_t step);

  // Evaluation: samples of held-out prompts under the weights published last. They are no part of
  // any step, and are neither journalled nor returned by take().

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

  // State of every worker that has a session, and figures counted since the endpoint was opened.
  std::vector<WorkerStatus> workers() const;
  BridgeCounters counters() const;
  // Events since the last call, oldest first. Above 1024 the oldest are dropped and counted.
  std::vector<BridgeEvent> drain_events();

  // Tells every worker that the run has ended, also workers that join later.
  void end(const std::string& reason);
  // Waits until pending messages to workers are sent or `deadline` has passed, then stops the
  // threads. Idempotent. take() and take_evaluation() then no longer wait; what has arrived is
  // still returned.
  void close(std::chrono::milliseconds deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringside::bridge
