// Signals of this process as events to wait for, with a deadline.
#pragma once

#include <signal.h>

#include <chrono>
#include <optional>
#include <vector>

namespace ringside::tools {

// While it lives, SIGCHLD, SIGINT, SIGTERM and SIGHUP to the calling thread are queued here instead
// of being delivered (SIGHUP only where it is not ignored, as nohup does). Not thread-safe;
// construct and destroy it on one thread.
class SignalQueue {
 public:
  // Throws std::system_error.
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  // The next signal's number, or nullopt when first `deadline` passes (no deadline: waits for ever)
  // or one of `readable` has something to read. Blocks. Throws std::system_error.
  std::optional<int> wait(std::optional<std::chrono::steady_clock::time_point> deadline,
                          const std::vector<int>& readable = {});

 private:
  int fd_ = -1;
  sigset_t previous_;
};

}  // namespace ringside::tools
