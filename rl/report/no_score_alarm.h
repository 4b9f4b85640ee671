// Alarm for steps in which no sample has a score, because the reward fails. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rl/report/metrics.h"
#include "rl/report/metrics_reader.h"

namespace ringside::rl {

class NoScoreAlarm {
 public:
  // max_steps: so many steps in a row without a score are the end of a run; 0 = none is.
  explicit NoScoreAlarm(int64_t max_steps) : max_steps_(max_steps) {}

  // Adds alarm/no_score: 1 for a step without any score, else 0. Returns a sentence at the first
  // such step in a row and whenever their number has doubled.
  // reason: why samples of the step have no score, "" if it is not known.
  std::vector<std::string> add(Metrics& metrics, bool has_score, const std::string& reason);

  // Why the run must end; nullopt while it need not.
  std::optional<std::string> end() const;

  // A sentence if no step of a run that has made all its steps had a score, from the run's lines of
  // metrics.jsonl; nullopt otherwise, and for a run without steps.
  std::optional<std::string> nothing_learned(std::span<const MetricsLine> run) const;
  // Whether that is an error.
  bool may_end_run() const { return max_steps_ > 0; }

 private:
  // "no sample of the last 3 steps has a score: REASON"
  std::string sentence() const;

  int64_t max_steps_;
  int64_t steps_ = 0;  // in a row without a score
  std::string reason_;
};

}  // namespace ringside::rl
