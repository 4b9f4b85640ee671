// Wall times of the stages of one training step.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "rl/report/metrics.h"

namespace ringside::rl {

// Thread safety: none.
class StageTimes {
 public:
  using Clock = std::chrono::steady_clock;

  // Runs `work`, adds its wall time to the stage, and returns its result. The time counts even if
  // `work` throws. Stages must not be nested: their times would be counted twice.
  template <class Work>
  auto time(const std::string& stage, Work&& work) {
    const Timer timer(seconds_[stage]);
    return std::forward<Work>(work)();
  }

  // The times since the last call as metrics time/STAGE in seconds, and starts again from zero. A
  // stage that was seen once is in every later result, so that the columns stay the same.
  Metrics take() {
    Metrics metrics;
    for (auto& [stage, seconds] : seconds_) {
      metrics.emplace_back("time/" + stage, std::exchange(seconds, 0.0));
    }
    return metrics;
  }

 private:
  class Timer {
   public:
    explicit Timer(double& seconds) : seconds_(seconds) {}
    ~Timer() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    double& seconds_;
    Clock::time_point begin_ = Clock::now();
  };

  std::map<std::string, double> seconds_;
};

}  // namespace ringside::rl
