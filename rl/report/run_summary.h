// Summary of a run from its metrics: rewards at its beginning and end, evaluations, where the time
// went. Torch-free. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rl/report/metrics_reader.h"

namespace ringside::rl {

// A stage in words: "wait_rollouts" -> "waiting for rollouts".
std::string stage_text(std::string_view stage);

struct StageShare {
  std::string stage;  // as in time/STAGE, or "other" for the rest of step_time
  double seconds = 0.0;
  double share = 0.0;  // of the sum of step_time
};

// Wall time by stage over the lines with a step_time, the longest first; "other" is always there.
std::vector<StageShare> stage_shares(const std::vector<MetricsLine>& lines);

// Sentences about the run; none without a finished step.
std::vector<std::string> summarize_run(const std::vector<MetricsLine>& lines);

}  // namespace ringside::rl
