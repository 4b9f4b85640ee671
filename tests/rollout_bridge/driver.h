// A trainer and workers for the endpoint tests: a worker that samples by the book, with bad habits
// on request.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "rollout_bridge/trainer/trainer_endpoint.h"
#include "rollout_bridge/worker/worker_endpoint.h"
#include "rollout_bridge/worker/worker_queue.h"
#include "tests/rollout_bridge/samples.h"
#include "tests/support/hand_granted.h"

namespace ringside::bridge::test {

inline constexpr std::chrono::milliseconds kPatience{20000};

// ungranted_size: see HandGrants.
inline TrainerOptions trainer_options(const TempDir& dir, int32_t ungranted_size = 4) {
  TrainerOptions o;
  o.run_id = "run";
  o.trainer_term = 1;
  o.journal.directory = dir.path() / "journal";
  o.journal.fsync = FsyncPolicy::kOff;
  o.heartbeat_interval = std::chrono::milliseconds(100);
  o.worker_timeout = std::chrono::milliseconds(1500);
  o.policy = HandGrants(ungranted_size).policy();
  return o;
}

inline WorkerOptions worker_options(const std::string& address, const std::string& id) {
  WorkerOptions o;
  o.rollout_address = address;
  o.worker_id = id;
  o.chunk_bytes = 4096;
  o.busy_retry = std::chrono::milliseconds(50);
  o.backoff_max = std::chrono::milliseconds(300);
  return o;
}

inline std::vector<TestGroup> groups(int64_t first, int64_t count, int32_t size,
                                     int64_t min_version) {
  std::vector<TestGroup> out;
  for (int64_t g = first; g < first + count; ++g) {
    out.push_back({g, size, min_version});
  }
  return out;
}

// True as soon as `condition` holds, false when the patience ran out.
template <class Condition>
bool eventually(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!condition() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

// Pops until `count` rollouts are there; fewer when the patience runs out. A (group, sample) that
// comes twice ends the collection short.
inline std::vector<Rollout> collect(TestTrainer& trainer, std::size_t count) {
  std::vector<Rollout> out;
  std::set<std::pair<int64_t, int32_t>> seen;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (out.size() < count && std::chrono::steady_clock::now() < until) {
    auto rollout = trainer.pop(std::chrono::milliseconds(200));
    if (!rollout) {
      continue;
    }
    if (!seen.insert({rollout->group_id, rollout->sample_index}).second) {
      break;
    }
    out.push_back(std::move(*rollout));
  }
  return out;
}

inline void lengthen(Rollout& r, std::size_t tokens) {
  r.completion_ids.assign(tokens, 7);
  r.logprobs.assign(tokens, -1.0F);
  r.loss_mask.clear();
  r.advantages.clear();
  r.branches.clear();
  r.turn_offsets.clear();
  r.turn_rewards.clear();
}

struct Habit {
  int max_rollouts = 1 << 30;  // then it goes silent
  int repeat = 1;              // sends each rollout so often
  int failures = 0;            // the first samples come back as errors
  int wrong_roots = 0;         // the first commits lie
  std::size_t tokens = 0;      // of each completion; 0: a few, drawn
};

class TestWorker {
 public:
  TestWorker(const std::string& address, const std::string& id, Habit habit = {})
      : TestWorker(worker_options(address, id), habit) {}
  TestWorker(WorkerOptions options, Habit habit)
      : habit_(habit), endpoint_(std::move(options)), thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            if (auto event = endpoint_.poll(std::chrono::milliseconds(20))) {
              handle(*event);
            }
            if (!queue_.has_made()) {
              sample_queued();
            }
            queue_.deliver(endpoint_);
          }
        }) {}
  ~TestWorker() {
    thread_.request_stop();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  int delivered() const { return sent_; }
  std::vector<int64_t> installed() {
    const std::lock_guard lock(mutex_);
    return installed_;
  }
  bool wait_ended() {
    return eventually([this] { return ended_.load(); });
  }
  bool drain() {
    return eventually([this] { return endpoint_.pending() == 0; });
  }
  int connections() const { return connections_; }
  bool leave() {
    thread_.request_stop();
    thread_.join();
    return endpoint_.bye("test over", kPatience);
  }

 private:
  void handle(const WorkerEvent& event) {
    if (const auto* granted = std::get_if<Granted>(&event)) {
      queue_.on_granted(*granted);
    }
    if (const auto* ready = std::get_if<WeightsReady>(&event)) {
      install(*ready->snapshot);
    }
    if (std::holds_alternative<Ended>(event)) {
      ended_ = true;
    }
    if (const auto* connected = std::get_if<Connected>(&event)) {
      queue_.on_connected(connected->trainer_term);
      ++connections_;
    }
  }

  void install(const WeightSnapshot& snapshot) {
    std::string root = root_hash_of(named(snapshot));
    if (habit_.wrong_roots-- > 0) {
      root.assign(32, '0');
    }
    version_ = snapshot.manifest.version;
    trainer_term_ = snapshot.manifest.trainer_term;
    {
      const std::lock_guard lock(mutex_);
      installed_.push_back(version_);
    }
    (void)endpoint_.commit_weights(version_, root);
  }

  void sample_queued() {
    for (const GrantedSample& sample : queue_.start(queue_.queued())) {
      if (sent_ >= habit_.max_rollouts) {
        return;
      }
      Rollout r = make_rollout(sample.group_id, sample.sample_index, sample.group_size);
      r.attempt = sample.attempt;
      r.rollout_id.append("-").append(std::to_string(sample.attempt));
      if (habit_.tokens > 0) {
        lengthen(r, habit_.tokens);
      }
      r.versions = {{version_, 0, static_cast<int64_t>(r.completion_ids.size())}};
      r.trainer_term = trainer_term_;
      if (habit_.failures > 0) {
        --habit_.failures;
        r.finish_reason = FinishReason::kError;
      }
      for (int i = 1; i < habit_.repeat; ++i) {
        (void)endpoint_.send_rollout(r, kPatience);
      }
      queue_.finish(std::move(r));
      ++sent_;
    }
  }

  Habit habit_;
  WorkerQueue queue_;
  int64_t version_ = -1;
  int64_t trainer_term_ = -1;
  std::atomic<int> sent_{0};
  std::atomic<int> connections_{0};
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::vector<int64_t> installed_;
  WorkerEndpoint endpoint_;
  std::jthread thread_;
};

}  // namespace ringside::bridge::test
