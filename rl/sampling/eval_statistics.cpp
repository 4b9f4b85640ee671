#include "rl/sampling/eval_statistics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <stdexcept>

namespace ringside::rl {
namespace {

constexpr double kNormal95 = 1.959963984540054;  // 97.5 % quantile of the normal distribution

using OfPrompt = std::function<std::optional<double>(const PromptResult&)>;

// Appends the mean over the prompts that have a value; nothing when none has.
void add_figure(std::vector<EvalFigure>& figures, std::string name,
                std::span<const PromptResult> results, const OfPrompt& value) {
  std::vector<double> values;
  for (const PromptResult& result : results) {
    if (const auto own = value(result)) {
      values.push_back(*own);
    }
  }
  if (values.empty()) {
    return;
  }
  EvalFigure figure{std::move(name)};
  const auto count = static_cast<double>(values.size());
  figure.value = std::accumulate(values.begin(), values.end(), 0.0) / count;
  const bool all_equal =
      std::all_of(values.begin(), values.end(), [&](double own) { return own == values.front(); });
  if (!all_equal) {  // the mean of equal numbers need not equal them exactly
    double squares = 0.0;
    for (const double own : values) {
      squares += (own - figure.value) * (own - figure.value);
    }
    figure.half_width = kNormal95 * std::sqrt(squares / (count - 1.0) / count);
  }
  figures.push_back(std::move(figure));
}

template <class T>
double mean(const std::vector<T>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::optional<double> pass_of(const PromptResult& result, int64_t k) {
  const auto n = static_cast<int64_t>(result.rewards.size());
  if (n < k) {
    return std::nullopt;
  }
  const auto passed = std::count_if(result.rewards.begin(), result.rewards.end(),
                                    [](double reward) { return reward > kPassReward; });
  return pass_at_k(n, passed, k);
}

}  // namespace

double pass_at_k(int64_t n, int64_t passed, int64_t k) {
  if (passed < 0 || passed > n || k < 1 || k > n) {
    throw std::invalid_argument("pass@" + std::to_string(k) + " of " + std::to_string(passed) +
                                " passed of " + std::to_string(n) +
                                " samples: expected 0 <= passed <= n and 1 <= k <= n");
  }
  double none = 1.0;  // C(n - passed, k) / C(n, k) as a product of k factors
  for (int64_t i = 0; i < k; ++i) {
    none *= static_cast<double>(std::max<int64_t>(n - passed - i, 0)) / static_cast<double>(n - i);
  }
  return 1.0 - none;
}

std::vector<EvalFigure> eval_figures(std::span<const PromptResult> results, int64_t samples) {
  std::vector<PromptResult> scored;
  std::copy_if(results.begin(), results.end(), std::back_inserter(scored),
               [](const PromptResult& result) { return !result.rewards.empty(); });
  if (scored.empty()) {
    return {};
  }
  std::vector<EvalFigure> figures;
  add_figure(figures, "reward", scored, [](const PromptResult& r) { return mean(r.rewards); });
  for (const int64_t k : pass_at_ks(samples)) {
    add_figure(figures, "pass@" + std::to_string(k), scored,
               [k](const PromptResult& r) { return pass_of(r, k); });
  }
  add_figure(figures, "length", scored, [](const PromptResult& r) { return mean(r.lengths); });
  add_figure(figures, "truncated", scored, [](const PromptResult& r) {
    return static_cast<double>(r.truncated) / static_cast<double>(r.rewards.size());
  });
  return figures;
}

Metrics eval_metrics(const std::vector<EvalFigure>& figures, const EvalSet& set) {
  Metrics metrics;
  for (const EvalFigure& figure : figures) {
    metrics.emplace_back(set.metric(figure.name), figure.value);
    if (figure.name == "reward") {
      metrics.emplace_back(set.metric("reward_ci95"), figure.half_width);
    }
  }
  return metrics;
}

}  // namespace ringside::rl
