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

// Whether a metric is the reward or the loss on a held-out set: "eval_reward", "eval_loss",
// "eval/SET/reward" or "eval/SET/loss".
inline bool is_evaluation(std::string_view name) {
  const bool of_named_set =
      name.starts_with("eval/") && (name.ends_with("/reward") || name.ends_with("/loss"));
  return of_named_set || name == "eval_reward" || name == "eval_loss";
}

}  // namespace ringside::rl
