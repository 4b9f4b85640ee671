// Queue of this process's signals, to wait for with a deadline.
#pragma once

#include <signal.h>

#include <chrono>
#include <optional>
#include <vector>

namespace ringside::tools {

// `timeout` and job schedulers send a signal to a process and to its group, so that it arrives
// twice; others send two kinds at once. Signals that arrive within this time are one request.
inline constexpr std::chrono::milliseconds kOneRequest{200};

// While it exists, SIGCHLD, SIGINT, SIGTERM, SIGHUP and SIGPIPE to the calling thread are queued
// instead of being delivered. SIGHUP and SIGPIPE are queued only if they are not ignored, as under
// nohup. Construct and
// destroy it on one thread.
// Thread safety: none.
class SignalQueue {
 public:
  // Throws std::system_error.
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  // The next signal's number; nullopt when `deadline` passes first or one of `readable` becomes
  // readable. Without a deadline it waits forever.
  // Blocks: until one of these.
  // Throws: std::system_error.
  std::optional<int> wait(std::optional<std::chrono::steady_clock::time_point> deadline,
                          const std::vector<int>& readable = {});

 private:
  int fd_ = -1;
  sigset_t previous_;
};

}  // namespace ringside::tools
