// The granted samples of a rollout worker: queued, being sampled, or made and waiting to be sent.
//
// It is the one owner of the question "which samples does this worker hold". A sample leaves it
// when its rollout has been handed to the link, which keeps the rollout until it is acknowledged.
//
// New session: the trainer has taken back every sample. Queued ones are dropped, for they are
// granted anew to whoever is free. What is being sampled is finished and delivered; granted again
// meanwhile, it is not started a second time. Back-pressure: rollouts that find no room at the link
// stay here; has_made() tells the worker to start nothing new.
//
// Thread safety: none; it belongs to the worker's loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rollout_bridge/worker/trainer_link.h"

namespace ringside::bridge {

// One sample of a granted group.
struct GrantedSample {
  int64_t group_id = -1;
  int32_t group_size = 0;
  int64_t min_version = 0;
  int32_t attempt = 0;
  int32_t sample_index = -1;
};

class WorkerQueue {
 public:
  void on_connected();
  // Queues the samples that are not held yet.
  void on_granted(const Granted& granted);

  // Up to `at_most` queued samples, oldest first; they are being sampled from now on.
  std::vector<GrantedSample> start(std::size_t at_most);
  // A started sample is to be sampled anew: it is the next one again, or dropped when the trainer
  // has not granted it in this session.
  void put_back(const GrantedSample& sample);
  // A started sample's rollout. Throws std::invalid_argument for a sample that was not started.
  void finish(Rollout rollout);

  // Hands made rollouts to the link while it has room, oldest first. One that does not pass
  // validate() goes out as a failed sample (finish_reason error): the trainer asks for it again.
  // Returns a sentence for the log for each of those. Throws std::runtime_error when the failed
  // sample is refused as well.
  std::vector<std::string> deliver(TrainerLink& link);

  std::size_t queued() const { return order_.size(); }
  bool has_made() const { return !made_.empty(); }
  // Queued, being sampled, and made.
  std::size_t held() const { return samples_.size(); }

 private:
  using Key = std::pair<int64_t, int32_t>;  // group, sample
  enum class Stage { kQueued, kStarted, kMade };
  struct Held {
    GrantedSample grant;  // the latest
    Stage stage = Stage::kQueued;
    bool is_current = true;  // granted in this session
  };

  std::map<Key, Held> samples_;
  std::deque<Key> order_;  // of those that are queued
  std::deque<Rollout> made_;
};

}  // namespace ringside::bridge
