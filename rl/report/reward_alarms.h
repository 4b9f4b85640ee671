// Alarms for a run whose rewards carry no training signal. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rl/algorithm/token_advantages.h"
#include "rl/report/metrics.h"

namespace ringside::rl {

class RewardAlarms {
 public:
  // Consecutive steps before an alarm is raised.
  static constexpr int64_t kSteps = 5;

  // Adds alarm/zero_reward (all rewards of the last kSteps steps are 0) and alarm/equal_rewards
  // (the rewards within every group are equal, so every advantage is 0), with value 1 when raised.
  // Returns a sentence for each raised alarm, at kSteps steps and whenever their number has
  // doubled. Adds nothing without rewards, as with estimator given. Zero rewards raise only the
  // first alarm.
  // Shapes: sample_score [B], in groups of group_size; advantage [N], over the loss tokens.
  // Throws: std::invalid_argument when sample_score is not whole groups.
  std::vector<std::string> add(Metrics& metrics, const SampleRewards& rewards,
                               std::span<const double> sample_score,
                               std::span<const double> advantage, int64_t group_size);

 private:
  int64_t zero_steps_ = 0;   // in a row
  int64_t equal_steps_ = 0;  // in a row, not all 0
};

}  // namespace ringside::rl
