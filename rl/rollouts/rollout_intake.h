// Live intake of rollouts on trainer rank 0, without the weights' source. Owns the bridge's
// endpoint, whose ledger decides what becomes of each group by step_policy(). Opens each step when
// the weights that it may be sampled under are published, and takes each step's rollouts.
// Torch-free.
// Thread safety: none, except where a method says otherwise. The endpoint has its own threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "rl/report/wait_notice.h"
#include "rl/rollouts/journal_room_notice.h"
#include "rl/rollouts/source_counters.h"
#include "rl/rollouts/step_policy.h"
#include "rollout_bridge/trainer/trainer_endpoint.h"

namespace ringside::rl {

// One sentence for the log.
struct IntakeMessage {
  std::string text;
  bool is_trouble = false;  // the run waits until somebody helps
};

class RolloutIntake {
 public:
  // options.newest_of_term: from record_start(). rules.first_step: the step after the version that
  // the trainer starts with. last_step: no group of a later step is granted.
  // Throws: what step_policy() and bridge::TrainerEndpoint throw; std::invalid_argument when the
  // groups up to last_step exceed the range of group ids.
  RolloutIntake(bridge::TrainerOptions options, const StepRules& rules, int64_t last_step);

  // For its addresses, evaluations by the workers, and finished checkpoints.
  bridge::TrainerEndpoint& endpoint() { return endpoint_; }

  // Publishes the weights and opens the steps up to next_step + max_staleness: with a staleness of
  // one or more, workers sample later steps while next_step is trained.
  // Blocks: never for a worker.
  // Throws: what TrainerEndpoint::publish and open_steps throw.
  void publish(std::shared_ptr<const bridge::WeightSnapshot> snapshot, int64_t next_step);

  // The messages of all rollouts of `step`, whole groups in order; nullopt if they are not complete
  // within `timeout`. Blocks: up to `timeout`. Throws: when the endpoint has failed.
  std::optional<std::vector<bridge::FlatRollout>> poll(int64_t step,
                                                       std::chrono::milliseconds timeout);

  // Events since the last call, one sentence each. Call it every second or more often: states that
  // last (no worker, a journal without room) are repeated every 30 s, by the time `now`.
  // Thread safety: may run concurrently with any other method.
  std::vector<IntakeMessage> drain_messages(
      std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now());

  // Tells the workers that the run is over.
  // Blocks: a few seconds at most.
  void finish();

  // Counted since the trainer started.
  SourceCounters counters() const;

 private:
  void log_where_refill_gave_up(int64_t step);
  void log_event(std::string message);
  // What lasts: no worker, or a journal without room. Under messages_mutex_.
  void add_waits(bool nobody, uint64_t refused, std::chrono::steady_clock::time_point now,
                 std::vector<IntakeMessage>& messages);

  StepRules rules_;
  std::filesystem::path journal_;
  int64_t last_step_;
  int64_t gave_up_ = 0;        // groups that refill gave up on, as logged
  std::mutex messages_mutex_;  // guards the four below
  std::vector<IntakeMessage> messages_;
  WaitNotice alone_;           // no worker is connected
  JournalRoomNotice no_room_;  // the journal refuses rollouts
  bool finished_ = false;
  bridge::TrainerEndpoint endpoint_;
};

}  // namespace ringside::rl
