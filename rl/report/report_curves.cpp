#include "rl/report/report_curves.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "rl/report/metric_meanings.h"

namespace ringside::rl {
namespace {

using PageJson = nlohmann::ordered_json;

constexpr std::size_t kMostSteps = 1000;  // shown one by one
constexpr std::size_t kMostPoints = 400;  // of a longer run: each is a mean, a lowest, a highest

// One metric over groups of neighbouring lines; null where a group has none of it.
struct Series {
  PageJson mean = PageJson::array();
  PageJson low = PageJson::array();
  PageJson high = PageJson::array();
};

Series series_of(const std::vector<MetricsLine>& lines, const std::string& name,
                 std::size_t group) {
  Series series;
  for (std::size_t begin = 0; begin < lines.size(); begin += group) {
    std::vector<double> values;
    for (std::size_t i = begin; i < std::min(lines.size(), begin + group); ++i) {
      if (const auto value = find_metric(lines[i].metrics, name)) {
        values.push_back(*value);
      }
    }
    double sum = 0.0;
    for (const double value : values) {
      sum += value;
    }
    std::erase_if(values, [](double value) { return !std::isfinite(value); });
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    const auto size = static_cast<double>(values.size());
    series.mean.push_back(values.empty() ? PageJson() : rounded(sum / size));
    series.low.push_back(values.empty() ? PageJson() : rounded(*low));
    series.high.push_back(values.empty() ? PageJson() : rounded(*high));
  }
  return series;
}

// One number where all values are equal.
PageJson shortened(PageJson values) {
  const bool constant = std::all_of(values.begin(), values.end(),
                                    [&](const PageJson& v) { return v == values.front(); });
  return constant && !values.front().is_null() ? PageJson(values.front()) : values;
}

// tokens/s of each step, which metrics.jsonl does not hold.
std::vector<MetricsLine> with_speed(std::vector<MetricsLine> lines) {
  for (MetricsLine& line : lines) {
    const auto tokens = find_metric(line.metrics, "num_tokens");
    const auto seconds = find_metric(line.metrics, "step_time");
    if (tokens && seconds && *seconds > 0.0) {
      line.metrics.emplace_back("tokens_per_s", *tokens / *seconds);
    }
  }
  return lines;
}

// Steps in which something happened.
struct Happened {
  int64_t steps = 0, first = 0, last = 0;
  double total = 0.0, highest = 0.0;

  void add(int64_t step, double amount) {
    first = steps == 0 ? step : first;
    last = step;
    ++steps;
    total += amount;
    highest = std::max(highest, amount);
  }
  std::string when() const {
    return std::to_string(steps) + (steps == 1 ? " step" : " steps") + ", first in " +
           std::to_string(first) + ", last in " + std::to_string(last);
  }
};

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

}  // namespace

PageJson rounded(double value) {
  if (!std::isfinite(value)) {
    return nullptr;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  const double digits = std::strtod(text, nullptr);
  const bool whole = std::abs(digits) < 1e15 && digits == std::floor(digits);
  return whole ? PageJson(static_cast<int64_t>(digits)) : PageJson(digits);
}

PageJson report_curves(const std::vector<MetricsLine>& of_run) {
  const auto lines = with_speed(of_run);
  const std::size_t group =
      lines.size() <= kMostSteps ? 1 : (lines.size() + kMostPoints - 1) / kMostPoints;
  PageJson curves{{"steps", PageJson::array()},   {"averaged", group},
                  {"series", PageJson::object()}, {"low", PageJson::object()},
                  {"high", PageJson::object()},   {"meanings", PageJson::object()}};
  std::set<std::string> names;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i % group == 0) {
      curves["steps"].push_back(lines[i].step);
    }
    for (const auto& [name, value] : lines[i].metrics) {
      names.insert(name);
    }
  }
  for (const std::string& name : names) {
    Series series = series_of(lines, name, group);
    if (group > 1) {
      curves["low"][name] = shortened(std::move(series.low));
      curves["high"][name] = shortened(std::move(series.high));
    }
    curves["series"][name] = shortened(std::move(series.mean));
    if (const auto meaning = metric_meaning(name); !meaning.empty()) {
      curves["meanings"][name] = meaning;
    }
  }
  return curves;
}

std::vector<std::string> report_alarms(const std::vector<MetricsLine>& lines) {
  std::map<std::string, Happened> alarms;
  Happened failed, lost;
  double lost_before = 0.0;
  for (const MetricsLine& line : lines) {
    for (const auto& [name, value] : line.metrics) {
      if (name.starts_with("alarm/") && value > 0.0) {
        alarms[name].add(line.step, value);
      }
    }
    if (const double share = find_metric(line.metrics, "response/aborted_ratio").value_or(0.0);
        share > 0.0) {
      failed.add(line.step, share);
    }
    // The counter begins anew at each start of the trainer.
    if (const auto count = find_metric(line.metrics, "bridge/lost_workers")) {
      const double more = *count < lost_before ? *count : *count - lost_before;
      if (more > 0.0) {
        lost.add(line.step, more);
      }
      lost_before = *count;
    }
  }
  std::vector<std::string> sentences;
  for (const auto& [name, raised] : alarms) {
    sentences.push_back(name + " was raised in " + raised.when());
  }
  if (failed.steps > 0) {
    sentences.push_back("response/aborted_ratio: samples failed or had no score in " +
                        failed.when() + ", at most " + short_number(100 * failed.highest) +
                        " % of a step");
  }
  if (lost.steps > 0) {
    sentences.push_back("bridge/lost_workers: workers were lost " + short_number(lost.total) +
                        (lost.total == 1.0 ? " time" : " times") + " in " + lost.when());
  }
  return sentences;
}

}  // namespace ringside::rl
