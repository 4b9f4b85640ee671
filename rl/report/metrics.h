// Metrics of one training step: names and values, in the order they were added.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ringside::rl {

using Metrics = std::vector<std::pair<std::string, double>>;

}  // namespace ringside::rl
