// Log lines while a worker waits for its inference server.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace ringside::rl {

// Writes "waiting for the vllm server at URL" at once and, with the newest reason, again every
// `every` until it is destroyed. The calls that wait may block for minutes, so it has a thread.
// Thread: one of its own. Blocks on: the clock. Unblocked by: destruction.
class ServerWaitNotice {
 public:
  using Write = std::function<void(const std::string& line)>;

  // server: "the vllm server at http://127.0.0.1:8000". write: called by the caller's thread, then
  // by this object's.
  ServerWaitNotice(std::string server, std::chrono::milliseconds every, Write write);

  // Why the last attempt failed.
  void set_reason(const std::string& reason);

 private:
  void repeat(const std::stop_token& stop);

  std::string server_;
  std::chrono::milliseconds every_;
  Write write_;
  std::mutex mutex_;
  std::string reason_;  // guarded by mutex_
  std::condition_variable_any stopped_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace ringside::rl
