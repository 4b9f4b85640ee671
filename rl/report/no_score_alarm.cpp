#include "rl/report/no_score_alarm.h"

#include <algorithm>
#include <bit>
#include <string_view>

namespace ringside::rl {
namespace {

constexpr std::string_view kName = "alarm/no_score";

}  // namespace

std::vector<std::string> NoScoreAlarm::add(Metrics& metrics, bool has_score,
                                           const std::string& reason) {
  metrics.emplace_back(kName, has_score ? 0.0 : 1.0);
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

std::optional<std::string> NoScoreAlarm::nothing_learned(std::span<const MetricsLine> run) const {
  int64_t steps = 0;
  for (const MetricsLine& line : run) {
    const auto alarm = std::find_if(line.metrics.begin(), line.metrics.end(),
                                    [](const auto& metric) { return metric.first == kName; });
    if (alarm == line.metrics.end()) {
      continue;  // the evaluation before training
    }
    if (alarm->second == 0.0) {
      return std::nullopt;
    }
    ++steps;
  }
  if (steps == 0) {
    return std::nullopt;
  }
  return "no sample of any step has a score (" + std::to_string(steps) + " steps)" +
         (reason_.empty() ? "" : ": " + reason_) +
         ". Nothing was learned; expected a reward that works. Then start again in a new run "
         "directory";
}

std::string NoScoreAlarm::sentence() const {
  return "no sample of the last " + (steps_ == 1 ? "step" : std::to_string(steps_) + " steps") +
         " has a score: " + reason_;
}

}  // namespace ringside::rl
