// Curves of the report page from a run's metrics, thinned out where a run is long. Torch-free.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "rl/report/metrics_reader.h"

namespace ringside::rl {

// The value with five digits, which is all that a curve shows; null if it is not finite.
nlohmann::ordered_json rounded(double value);

// {"steps": [...], "averaged": N, "series": {NAME: values}, "low": ..., "high": ..., "meanings":
// {NAME: sentence}}. A value is the mean over N neighbouring steps, the first of which is in
// "steps", null where no step has the metric. "low" and "high" are the lowest and the highest of
// them; where N is 1 they have no entries. A list of equal values is one number. N is 1 up to 1000
// lines. The metrics are those of the lines and "tokens_per_s".
nlohmann::ordered_json report_curves(const std::vector<MetricsLine>& lines);

// What a reader must not miss, as sentences: alarms that were raised, steps with samples that
// failed or have no score, steps in which workers were lost.
std::vector<std::string> report_alarms(const std::vector<MetricsLine>& lines);

}  // namespace ringside::rl
