#include "rl/publish/job_thread.h"

#include <utility>

namespace ringside::rl {

JobThread::JobThread() : thread_([this](const std::stop_token& stop) { loop(stop); }) {}

JobThread::~JobThread() {
  thread_.request_stop();
  thread_.join();
}

void JobThread::loop(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return waiting_.has_value(); }) &&
         !stop.stop_requested()) {
    const auto job = *std::exchange(waiting_, std::nullopt);
    running_ = true;
    changed_.notify_all();  // there is room again
    lock.unlock();
    std::exception_ptr failure;
    try {
      job();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    running_ = false;
    failure_ = failure;
    changed_.notify_all();
    if (failure_) {
      return;
    }
  }
}

void JobThread::check() const {
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

void JobThread::submit(std::function<void()> job) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || !waiting_; });
  check();
  waiting_ = std::move(job);
  changed_.notify_all();
}

bool JobThread::wait_idle(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const bool idle =
      changed_.wait_for(lock, timeout, [&] { return failure_ || (!running_ && !waiting_); });
  check();
  return idle;
}

}  // namespace ringside::rl
