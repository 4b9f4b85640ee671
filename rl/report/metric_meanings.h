// Meaning of each metric of metrics.jsonl in one sentence. Torch-free.
#pragma once

#include <string_view>

namespace ringside::rl {

// The meaning of a metric, e.g. "Mean reward of the step's completions."; empty for an unknown
// name.
std::string_view metric_meaning(std::string_view name);

}  // namespace ringside::rl
