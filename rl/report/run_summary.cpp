#include "rl/report/run_summary.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "rl/report/progress.h"

namespace ringside::rl {
namespace {

constexpr std::size_t kMostAveraged = 10;  // steps at either end

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string steps_text(std::size_t count) {
  return count == 1 ? "step" : std::to_string(count) + " steps";
}

struct Point {
  int64_t step = 0;
  double value = 0.0;
};

std::vector<Point> points_of(const std::vector<MetricsLine>& lines, std::string_view name) {
  std::vector<Point> points;
  for (const MetricsLine& line : lines) {
    if (const auto value = find_metric(line.metrics, name)) {
      points.push_back({line.step, *value});
    }
  }
  return points;
}

double mean_of(std::vector<Point>::const_iterator begin, std::vector<Point>::const_iterator end) {
  double sum = 0.0;
  for (auto at = begin; at != end; ++at) {
    sum += at->value;
  }
  return sum / static_cast<double>(end - begin);
}

void add_ends(std::vector<std::string>& text, const std::vector<MetricsLine>& lines,
              const std::string& name) {
  const auto points = points_of(lines, name);
  if (points.empty()) {
    return;
  }
  const std::size_t ends = std::clamp<std::size_t>(points.size() / 5, 1, kMostAveraged);
  const auto width = static_cast<std::ptrdiff_t>(ends);
  text.push_back(name + " " + short_number(mean_of(points.begin(), points.begin() + width)) +
                 " in the first " + steps_text(ends) + ", " +
                 short_number(mean_of(points.end() - width, points.end())) + " in the last " +
                 (ends == 1 ? "" : std::to_string(ends)));
  if (ends == 1) {
    text.back().pop_back();
  }
}

void add_evaluations(std::vector<std::string>& text, const std::vector<MetricsLine>& lines) {
  std::vector<std::string> names;
  for (const MetricsLine& line : lines) {
    for (const auto& [name, value] : line.metrics) {
      if (is_evaluation(name) && std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  for (const std::string& name : names) {
    const auto points = points_of(lines, name);
    const bool less_is_better = name.ends_with("loss");
    const auto best =
        std::max_element(points.begin(), points.end(), [&](const Point& a, const Point& b) {
          return less_is_better ? a.value > b.value : a.value < b.value;
        });
    const auto at = [](const Point& point) {
      return short_number(point.value) + " at step " + std::to_string(point.step);
    };
    text.push_back(name + " " + at(points.front()) +
                   (points.size() > 1 ? ", " + at(points.back()) + ", best " + at(*best) : ""));
  }
}

}  // namespace

std::string stage_text(std::string_view stage) {
  static const std::map<std::string_view, std::string> texts{
      {"wait_rollouts", "waiting for rollouts"},
      {"wait_data", "waiting for data"},
      {"score", "scoring"},
      {"train", "training"},
      {"publish", "publishing weights"},
      {"save", "saving"},
      {"evaluate", "evaluating"},
      {"samples", "logging samples"}};
  const auto found = texts.find(stage);
  return found == texts.end() ? std::string(stage) : found->second;
}

std::vector<StageShare> stage_shares(const std::vector<MetricsLine>& lines) {
  std::map<std::string, double> seconds;
  double total = 0.0;
  double named = 0.0;
  for (const MetricsLine& line : lines) {
    const auto step_time = find_metric(line.metrics, "step_time");
    if (!step_time) {
      continue;
    }
    total += *step_time;
    for (const auto& [name, value] : line.metrics) {
      if (name.starts_with("time/")) {
        seconds[name.substr(5)] += value;
        named += value;
      }
    }
  }
  seconds["other"] = std::max(0.0, total - named);
  std::vector<StageShare> shares;
  for (const auto& [stage, spent] : seconds) {
    shares.push_back({stage, spent, total > 0.0 ? spent / total : 0.0});
  }
  std::stable_sort(shares.begin(), shares.end(),
                   [](const StageShare& a, const StageShare& b) { return a.seconds > b.seconds; });
  return shares;
}

std::vector<std::string> summarize_run(const std::vector<MetricsLine>& lines) {
  const auto steps = points_of(lines, "step_time");
  if (steps.empty()) {
    return {};
  }
  std::vector<std::string> text;
  add_ends(text, lines, points_of(lines, "reward").empty() ? "loss" : "reward");
  add_evaluations(text, lines);
  double total = 0.0;
  for (const Point& step : steps) {
    total += step.value;
  }
  std::string where;
  for (const StageShare& share : stage_shares(lines)) {
    if (share.share >= 0.01) {
      char percent[16];
      std::snprintf(percent, sizeof percent, " %.0f %%", 100 * share.share);
      where += (where.empty() ? "" : ", ") + stage_text(share.stage) + percent;
    }
  }
  text.push_back(std::to_string(steps.size()) + " steps took " + format_duration(total) + ": " +
                 where);
  return text;
}

}  // namespace ringside::rl
