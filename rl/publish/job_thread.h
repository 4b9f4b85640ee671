// One thread that runs jobs in the order they were given: one is under way and at most one waits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace ringside::rl {

// Thread-safe. What a job throws ends the thread and is rethrown by every later call but the
// destructor.
class JobThread {
 public:
  JobThread();
  // Drops the job that waits, if any; blocks until the one under way has ended.
  ~JobThread();
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  // Blocks while another job waits already: whoever gives jobs faster than they are done is slowed
  // down, none is left out.
  void submit(std::function<void()> job);

  // Blocks until no job is under way or waits, at most `timeout`; whether that is so.
  bool wait_idle(std::chrono::milliseconds timeout);

 private:
  void loop(const std::stop_token& stop);
  void check() const;  // under the mutex

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<std::function<void()>> waiting_;
  bool running_ = false;
  std::exception_ptr failure_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace ringside::rl
