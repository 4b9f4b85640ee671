// How a worker's loop is run over a WorkerEndpoint until the run is over, with a word in the log while it waits for a trainer.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "rollout_bridge/worker_endpoint.h"

namespace ringside::rl {

// When to say again that something is waited for: after 5 s, then every minute. Not thread-safe.
class WaitNotice {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // Whether to log now, while waiting.
  bool is_due(TimePoint now);
  // The waiting is over.
  void reset() { next_.reset(); }

 private:
  std::optional<TimePoint> next_;
};

// Logs for whom an endpoint without a session waits, and why.
void say_if_waiting(const bridge::WorkerEndpoint& endpoint, WaitNotice& notice, WaitNotice::TimePoint now);

// Says BYE to the trainer.
void leave(bridge::WorkerEndpoint& endpoint, bool run_has_ended);

// Blocks until loop.is_over(). Throws what its turn() throws.
template <class Loop>
void run_loop(Loop& loop, bridge::WorkerEndpoint& endpoint, const std::function<WaitNotice::TimePoint()>& now) {
  WaitNotice notice;
  while (!loop.is_over()) {
    endpoint.wait(loop.turn());
    say_if_waiting(endpoint, notice, now());
  }
}

}  // namespace ringside::rl
