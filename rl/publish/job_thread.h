// Background thread that runs jobs in order. At most one job runs and at most one is pending.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace ringside::rl {

// An exception of a job ends the thread; every later call except the destructor rethrows it. A
// pending job is then not run.
// Thread safety: all methods.
class JobThread {
 public:
  // Starts the thread.
  JobThread();
  // Drops the pending job, if any.
  // Blocks: until the running job has ended.
  ~JobThread();
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  // Submits a job. Jobs are never dropped by submit().
  // Blocks: while a job is pending (back-pressure).
  void submit(std::function<void()> job);

  // Waits until no job runs or is pending; returns whether that is so.
  // Blocks: up to `timeout`.
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
