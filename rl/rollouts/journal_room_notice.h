// Schedule of log lines while the journal refuses rollouts.
#pragma once

#include <chrono>
#include <cstdint>

#include "rl/report/wait_notice.h"

namespace ringside::rl {

// Thread safety: none.
class JournalRoomNotice {
 public:
  using TimePoint = WaitNotice::TimePoint;

  // Lines are due every `again` while refusals go on. Workers send a refused rollout again after a
  // second, so there is room once none was refused for `quiet`.
  explicit JournalRoomNotice(std::chrono::milliseconds again,
                             std::chrono::milliseconds quiet = std::chrono::seconds(5))
      : notice_(again, again), quiet_(quiet) {}

  // refused: rollouts that the journal has refused so far.
  bool is_due(std::uint64_t refused, TimePoint now) {
    if (refused != refused_) {
      refused_ = refused;
      refused_at_ = now;
    }
    if (refused_ == 0 || now - refused_at_ > quiet_) {
      notice_.reset();
      return false;
    }
    return notice_.is_due(now);
  }

 private:
  WaitNotice notice_;
  std::chrono::milliseconds quiet_;
  std::uint64_t refused_ = 0;
  TimePoint refused_at_{};
};

}  // namespace ringside::rl
