// The numbers of one training step, by name and in the order they were added.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ringside::rl {

using Metrics = std::vector<std::pair<std::string, double>>;

}  // namespace ringside::rl
