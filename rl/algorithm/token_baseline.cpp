#include "rl/algorithm/token_baseline.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ringside::rl {
namespace {

constexpr std::string_view kBaselines = "optimal_token_baselines";
constexpr double kEps = 1e-8;  // of the denominator

// W of every token.
std::vector<double> path_weights(const StepColumns& table) {
  std::vector<double> weights;
  for (int64_t sample = 0; sample < table.samples(); ++sample) {
    double sum = 0.0;
    for (int64_t t = table.begin[sample]; t < table.begin[sample + 1]; ++t) {
      const double factor = table.correction.empty() ? 1.0 : table.correction[t];
      sum += (1.0 - 2.0 * std::exp(table.old[t]) + table.squares[t]) * factor * factor;
      weights.push_back(sum);
    }
  }
  return weights;
}

}  // namespace

std::vector<double> optimal_token_baselines(const StepColumns& table,
                                            std::span<const double> returns, int64_t group_size) {
  check_samples(table, kBaselines);
  check_column(table, table.old, "old", kBaselines);
  check_column(table, table.squares, "squares", kBaselines);
  check_column(table, {returns.begin(), returns.end()}, "returns", kBaselines);
  if (group_size < 1 || table.samples() % group_size != 0) {
    throw std::invalid_argument(std::string(kBaselines) + ": " + std::to_string(table.samples()) +
                                " samples are not whole groups of " + std::to_string(group_size));
  }
  const std::vector<double> weight = path_weights(table);
  std::vector<double> baseline(weight.size(), 0.0);
  for (int64_t first = 0; first < table.samples(); first += group_size) {
    const auto length = [&](int64_t i) {
      return table.begin[first + i + 1] - table.begin[first + i];
    };
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < group_size; ++i) {
      lengths.push_back(length(i));
    }
    std::ranges::sort(lengths, std::greater{});
    const int64_t compared = group_size > 1 ? lengths[1] : 0;
    for (int64_t place = 0; place < compared; ++place) {
      double sum = 0.0, weights = 0.0;
      for (int64_t i = 0; i < group_size; ++i) {
        if (place < length(i)) {
          const int64_t t = table.begin[first + i] + place;
          sum += returns[t] * weight[t];
          weights += weight[t];
        }
      }
      for (int64_t i = 0; i < group_size; ++i) {
        if (place < length(i)) {
          baseline[table.begin[first + i] + place] = sum / (weights + kEps);
        }
      }
    }
  }
  return baseline;
}

}  // namespace ringside::rl
