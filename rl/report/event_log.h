// Events of a run as log lines, in bounded number.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace ringside::rl {

// Passes each event on at once, but of one kind (texts that differ in numbers alone) at most 5
// within 10 s, and of all kinds at most 40; what was left out is counted and told when the 10 s are
// over. Thread-safe.
class EventLog {
 public:
  using Clock = std::chrono::steady_clock;

  explicit EventLog(std::function<void(const std::string&)> write) : write_(std::move(write)) {}

  void add(const std::string& text, Clock::time_point now = Clock::now());

  // To be called about once a second: tells what was left out. add() does so too.
  void tick(Clock::time_point now = Clock::now());

 private:
  struct Kind {
    int64_t seen = 0;
    std::string last;  // of what was left out
  };

  void end_window(Clock::time_point now);

  std::mutex mutex_;
  std::function<void(const std::string&)> write_;
  Clock::time_point window_begin_{};
  std::map<std::string, Kind> kinds_;  // of this window, at most kMaxKinds
  int64_t written_ = 0;                // within this window
  int64_t left_out_ = 0;
};

}  // namespace ringside::rl
