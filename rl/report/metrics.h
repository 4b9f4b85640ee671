// Metrics of one training step: names and values, in the order they were added.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ringside::rl {

using Metrics = std::vector<std::pair<std::string, double>>;

// The first metric of that name; nullopt if there is none.
inline std::optional<double> find_metric(const Metrics& metrics, std::string_view name) {
  const auto found = std::find_if(metrics.begin(), metrics.end(),
                                  [&](const auto& metric) { return metric.first == name; });
  return found == metrics.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace ringside::rl
