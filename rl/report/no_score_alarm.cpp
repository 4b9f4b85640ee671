#include "rl/report/no_score_alarm.h"

#include <bit>

namespace ringside::rl {

std::vector<std::string> NoScoreAlarm::add(Metrics& metrics, bool has_score,
                                           const std::string& reason) {
  metrics.emplace_back("alarm/no_score", has_score ? 0.0 : 1.0);
  if (has_score) {
    steps_ = 0;
    return {};
  }
  ++steps_;
  reason_ = reason.empty() ? "the workers' lines in the log say why" : reason;
  if (!std::has_single_bit(static_cast<uint64_t>(steps_))) {
    return {};
  }
  return {sentence() + ". Nothing is learned from such a step"};
}

std::optional<std::string> NoScoreAlarm::end() const {
  if (max_steps_ == 0 || steps_ < max_steps_) {
    return std::nullopt;
  }
  return sentence() +
         ". The run ends after rollout.max_steps_without_score = " + std::to_string(max_steps_) +
         " of them; when the reward works again, the same command goes on";
}

std::string NoScoreAlarm::sentence() const {
  return "no sample of the last " + (steps_ == 1 ? "step" : std::to_string(steps_) + " steps") +
         " has a score: " + reason_;
}

}  // namespace ringside::rl
