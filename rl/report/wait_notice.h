// Schedule of log lines during a wait.
#pragma once

#include <chrono>

namespace ringside::rl {

// Thread safety: none.
class WaitNotice {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Lines are due `first` after the wait has begun, then every `again`.
  explicit WaitNotice(std::chrono::milliseconds first = std::chrono::seconds(5),
                      std::chrono::milliseconds again = std::chrono::seconds(60))
      : first_(first), again_(again) {}

  // Whether to log now, while waiting. The wait begins with the first call.
  bool is_due(TimePoint now) {
    if (!waits_) {
      waits_ = true;
      next_ = now + first_;
    }
    if (now < next_) {
      return false;
    }
    next_ = now + again_;
    return true;
  }
  // Call when the wait is over.
  void reset() { waits_ = false; }

 private:
  std::chrono::milliseconds first_;
  std::chrono::milliseconds again_;
  bool waits_ = false;
  TimePoint next_{};
};

}  // namespace ringside::rl
