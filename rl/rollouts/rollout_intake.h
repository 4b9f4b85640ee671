// The live side of a run on trainer rank 0 but for the weights themselves: owns the bridge's
// endpoint, grants each step's groups when the weights that they may be sampled under are
// published, queues what comes back, and has groups sampled again, or others in their place, where
// the queue asks for it. Torch-free; not thread-safe (the endpoint's threads apart).
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
  // rules.restored_version: version of the weights the trainer starts with, training step
  // rules.restored_version + 1 next. last_step: no group is granted beyond it. Throws what
  // RolloutQueue and bridge::TrainerEndpoint throw, and std::invalid_argument when last_step has
  // more groups than group ids can tell.
  RolloutIntake(bridge::TrainerOptions options, QueueRules rules, int64_t last_step);

  const std::string& rollout_address() const { return endpoint_.rollout_address(); }
  const std::string& weights_address() const { return endpoint_.weights_address(); }

  // Offers the weights and grants the groups of the steps up to next_step + max_staleness: with a
  // staleness of one or more, workers sample the steps after next_step while it is trained. Does
  // not wait. What the steps before next_step were trained on leaves the journal where no restart
  // could use it, so that this grows with what is between two checkpoints only as far as staleness
  // lets it.
  void publish(std::shared_ptr<const bridge::WeightSnapshot> snapshot, int64_t next_step);

  // All rollouts of `step`, whole groups in order, or nothing when they are not there within
  // `timeout`. Blocks up to timeout. Throws when the endpoint has failed.
  std::optional<std::vector<bridge::Rollout>> poll(int64_t step, std::chrono::milliseconds timeout);

  // What happened since the last call, one sentence each. Thread-safe: beside any other method.
  std::vector<std::string> drain_messages();

  // The checkpoint of `step` is on disk: the rollouts up to it, those of every round, need not be
  // kept.
  void checkpointed(int64_t step);

  // The run is over: tells the workers. Blocks for a few seconds at most.
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
  int64_t granted_to_step_;   // groups of the steps up to here are granted
  int64_t consumed_to_step_;  // and of the steps up to here are part of a checkpoint
  // Slots of the steps that were taken whose groups hold weights newer than the last checkpoint's.
  std::vector<int64_t> unrestorable_;
  std::mutex messages_mutex_;  // guards the four below
  std::vector<std::string> messages_;
  std::optional<std::chrono::steady_clock::time_point> alone_since_;
  bool alone_logged_ = false;
  bool finished_ = false;
  bridge::TrainerEndpoint endpoint_;
};

}  // namespace ringside::rl
