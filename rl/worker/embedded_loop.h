// The loop of a worker that samples batches itself. Torch-free: the model is behind BatchSampler.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
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
  // Returns the root hash computed anew from the installed bytes.
  virtual std::string install(const bridge::WeightSnapshot& snapshot) = 0;
  // One rollout for each sample, under the installed `version`.
  virtual std::vector<bridge::Rollout> sample(const std::vector<bridge::GrantedSample>& samples,
                                              int64_t version) = 0;
};

// Weights change between batches only, so no completion spans two versions. After an installation
// whose root hash is not the published one nothing is sampled: the trainer is told the hash, and
// offers the weights again.
class EmbeddedLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = std::function<Clock::time_point()>;

  // Batches are of `batch_samples` where so many are granted. `link` and `sampler` must outlive
  // this.
  EmbeddedLoop(bridge::TrainerLink& link, BatchSampler& sampler, WorkerSettings settings,
               std::size_t batch_samples, Now now);

  // Handles every event, then delivers, or samples one batch. Returns how long to wait for the link
  // before the next turn. Throws what the sampler throws, and std::runtime_error when the trainer
  // refuses this worker.
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
  void sample_batch();

  bridge::TrainerLink& link_;
  BatchSampler& sampler_;
  LinkEvents events_;
  std::size_t batch_samples_;
  Now now_;
  bridge::WorkerQueue queue_;
  int64_t version_ = -1;
  int64_t trainer_term_ = -1;
  bool is_verified_ = false;  // what is installed is what was published
  Clock::time_point gather_until_{};
};

}  // namespace ringside::rl
