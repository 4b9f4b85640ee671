// Live intake of rollouts on trainer rank 0, without the weights' source. Owns the bridge's
// endpoint. Grants each step's groups when the weights that they may be sampled under are
// published. Queues the rollouts that arrive. Grants groups again, or replacement groups, when the
// queue requests it. Torch-free.
// Thread safety: none, except where a method says otherwise. The endpoint has its own threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "rl/rollouts/rollout_queue.h"
#include "rollout_bridge/trainer/trainer_endpoint.h"

namespace ringside::rl {

class RolloutIntake {
 public:
  // rules.restored_version: version of the weights the trainer starts with; the next training step
  // is restored_version + 1. last_step: no group of a later step is granted.
  // Throws: what RolloutQueue and bridge::TrainerEndpoint throw; std::invalid_argument when the
  // groups up to last_step exceed the range of group ids.
  RolloutIntake(bridge::TrainerOptions options, QueueRules rules, int64_t last_step);

  const std::string& rollout_address() const { return endpoint_.rollout_address(); }
  const std::string& weights_address() const { return endpoint_.weights_address(); }

  // Publishes the weights and grants the groups of the steps up to next_step + max_staleness: with
  // a staleness of one or more, workers sample later steps while next_step is trained. Does not
  // block. Removes rollouts of steps before next_step from the journal once no restart can use
  // them. The journal therefore grows with the interval between checkpoints only as far as
  // staleness allows.
  void publish(std::shared_ptr<const bridge::WeightSnapshot> snapshot, int64_t next_step);

  // All rollouts of `step`, whole groups in order; nullopt if they are not complete within
  // `timeout`.
  // Blocks: up to `timeout`.
  // Throws: when the endpoint has failed.
  std::optional<std::vector<bridge::Rollout>> poll(int64_t step, std::chrono::milliseconds timeout);

  // Events since the last call, one sentence each.
  // Thread safety: may run concurrently with any other method.
  std::vector<std::string> drain_messages();

  // Call when the checkpoint of `step` is on disk: rollouts of the steps up to it, in every round,
  // are removed from the journal.
  void checkpointed(int64_t step);

  // Tells the workers that the run is over.
  // Blocks: a few seconds at most.
  void finish();

  SourceCounters counters() const;

 private:
  bridge::GroupGrant grant_of(int64_t group_id) const;
  void grant_to_step(int64_t step);
  void log_where_refill_gave_up(int64_t step, int64_t slots);
  void note_unrestorable(const std::vector<bridge::Rollout>& step);
  std::vector<int64_t> all_rounds(const std::vector<int64_t>& slots) const;
  void admit(bridge::Rollout rollout);
  void say(std::string message);

  RolloutQueue queue_;
  int64_t last_step_;
  int64_t granted_to_step_;   // last step whose groups are granted
  int64_t consumed_to_step_;  // last step that is part of a checkpoint
  // Slots of consumed steps whose groups hold weights newer than the last checkpoint's.
  std::vector<int64_t> unrestorable_;
  std::mutex messages_mutex_;  // guards the four below
  std::vector<std::string> messages_;
  std::optional<std::chrono::steady_clock::time_point> alone_since_;
  bool alone_logged_ = false;
  bool finished_ = false;
  bridge::TrainerEndpoint endpoint_;
};

}  // namespace ringside::rl
