// Rate-limited log of a run's events.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace ringside::rl {

// Writes each event at once, up to 5 of one kind within 10 s and 40 of all kinds. Events whose
// texts differ only in digits are of one kind; beyond 64 kinds all others are one. Suppressed
// events are counted and summarised after the 10 s.
// Thread safety: all methods.
class EventLog {
 public:
  using Clock = std::chrono::steady_clock;

  // write: gets each line. Called by the thread of add() or tick(), under a lock: it must not call
  // this object.
  explicit EventLog(std::function<void(const std::string&)> write) : write_(std::move(write)) {}

  // Writes the event, or counts it if there were too many, or too many of its kind.
  void add(const std::string& text, Clock::time_point now = Clock::now());

  // Call about once a second: writes the summary of suppressed events when it is due. add() does so
  // too.
  void tick(Clock::time_point now = Clock::now());

 private:
  struct Kind {
    int64_t seen = 0;
    std::string last;  // the last suppressed text
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
