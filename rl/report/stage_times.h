// Wall times of a training step and of its stages.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "rl/report/metrics.h"

namespace ringside::rl {

// The first step begins with the construction. Thread safety: none.
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

  // Ends the step: the seconds since the last call as the metric step_time, those of each stage as
  // time/STAGE, which together are at most that. What follows counts in the next step. A stage that
  // was seen once is in every later result, so that the columns stay the same.
  Metrics take() {
    const Clock::time_point now = Clock::now();
    Metrics metrics{
        {"step_time", std::chrono::duration<double>(now - std::exchange(begin_, now)).count()}};
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

  Clock::time_point begin_ = Clock::now();
  std::map<std::string, double> seconds_;
};

}  // namespace ringside::rl
