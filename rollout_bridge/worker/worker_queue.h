// Granted samples of a rollout worker: queued, being sampled, or finished and waiting to be sent.
//
// The queue is the one owner of the set of samples that this worker holds. A sample leaves the
// queue when its rollout is handed to the link, which keeps the rollout until it is acknowledged.
//
// New session: the trainer has taken back every sample. Queued samples are dropped, because the
// trainer grants them again to any free worker. Samples being sampled are finished and delivered; a
// second grant of one does not start it again.
//
// Back-pressure: finished rollouts stay here while the link has no room. While has_made() is true
// the worker starts nothing new.
//
// Thread safety: none; the queue belongs to the worker's loop.
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
  int64_t held_out = -1;  // number of the held-out prompt; -1: a prompt of the data order
};

class WorkerQueue {
 public:
  // A session began with this start of the trainer. Drops the queued samples; those that are being
  // sampled or finished count again once the trainer grants them in this session.
  void on_connected(int64_t trainer_term);
  // Queues the samples that are not held yet, and drops the withdrawn ones that are not started.
  void on_granted(const Granted& granted);

  // Takes up to `at_most` queued samples, oldest first, and marks them as being sampled.
  std::vector<GrantedSample> start(std::size_t at_most);
  // Returns a started sample to the front of the queue. Drops it when the trainer has not granted
  // it in this session.
  void put_back(const GrantedSample& sample);
  // Stores the rollout of a started sample. Drops one that says a later start of the trainer than
  // the one that granted its sample: no start takes what it has not granted.
  // Throws: std::invalid_argument for a sample that was not started.
  void finish(Rollout rollout);

  // Hands finished rollouts to the link while it has room, oldest first. A rollout that fails
  // validate() is sent as a failed sample (finish_reason error), so the trainer grants it again.
  // Returns one log sentence for each of these.
  // Throws: std::runtime_error when the failed sample is refused as well.
  std::vector<std::string> deliver(TrainerLink& link);

  std::size_t queued() const { return order_.size(); }
  bool has_made() const { return !made_.empty(); }
  // Samples queued, being sampled, and finished.
  std::size_t held() const { return samples_.size(); }

 private:
  using Key = std::pair<int64_t, int32_t>;  // group, sample
  enum class Stage { kQueued, kStarted, kMade };
  struct Held {
    GrantedSample grant;  // the latest grant
    Stage stage = Stage::kQueued;
    bool is_current = true;     // granted in this session
    int64_t trainer_term = -1;  // of the latest grant; -1: before any session
  };

  int64_t trainer_term_ = -1;  // of this session
  std::map<Key, Held> samples_;
  std::deque<Key> order_;  // queued samples, in order
  std::deque<Rollout> made_;
};

}  // namespace ringside::bridge
