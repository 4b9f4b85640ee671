// Loop of a worker that samples batches itself. Torch-free: the model is behind BatchSampler.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "rl/worker/link_events.h"
#include "rollout_bridge/worker/trainer_link.h"
#include "rollout_bridge/worker/worker_queue.h"

namespace ringside::rl {

// The model, its prompts and its rewards.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;
  // Installs the snapshot. Returns the root hash recomputed from the installed bytes.
  // Throws: c10::Error for tensors that are not the model's.
  virtual std::string install(const bridge::WeightSnapshot& snapshot) = 0;
  // Rollouts of these samples and of those that it holds unfinished, under the installed `version`.
  // should_stop is asked before each token; when it returns true, the sampler may keep the samples
  // that are not complete, for the next call.
  // Blocks: until all are sampled and scored, or should_stop returned true.
  virtual std::vector<bridge::Rollout> sample(const std::vector<bridge::GrantedSample>& samples,
                                              int64_t version,
                                              const std::function<bool()>& should_stop) = 0;
  // Samples that the last call began and has not completed.
  virtual std::size_t unfinished() const { return 0; }
};

// New weights are installed between batches. A sampler that stops for them
// (rollout.partial_rollout) gets them at once, and its unfinished completions go on under them. If
// the root hash after an installation is not the published one, nothing is sampled: the hash is
// reported to the trainer, which offers the weights again.
class EmbeddedLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = std::function<Clock::time_point()>;

  // batch_samples: samples per batch, if so many are granted. `link` and `sampler` must outlive
  // this.
  EmbeddedLoop(bridge::TrainerLink& link, BatchSampler& sampler, WorkerSettings settings,
               std::size_t batch_samples, Now now);

  // Handles all pending events, then delivers rollouts or samples one batch. Returns how long to
  // wait for the link before the next turn.
  // Blocks: as the sampler.
  // Throws: what the sampler throws; std::runtime_error when the trainer rejects this worker.
  std::chrono::milliseconds turn();

  bool is_over() const { return events_.is_over(); }
  bool ended() const { return events_.ended(); }

 private:
  void handle(const bridge::Connected& connected);
  void handle(const bridge::Granted& granted);
  void handle(const bridge::WeightsReady& ready);
  template <class Other>
  void handle(const Other& event) {
    events_.handle(event);
  }
  void handle_events();
  void sample_batch();
  bool has_new_weights();

  bridge::TrainerLink& link_;
  BatchSampler& sampler_;
  LinkEvents events_;
  std::size_t batch_samples_;
  Now now_;
  bridge::WorkerQueue queue_;
  std::deque<bridge::WorkerEvent> early_events_;  // that came while a batch was sampled
  int64_t version_ = -1;
  int64_t trainer_term_ = -1;
  bool is_verified_ = false;  // the installed root hash is the published one
  Clock::time_point gather_until_{};
};

}  // namespace ringside::rl
