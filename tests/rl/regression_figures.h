// What a training step of tests/goldens/regression.py is compared by, and how.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

namespace ringside::test {

// Everything a step is compared by, columns and single numbers, under names that say what it is.
using Figures = std::map<std::string, std::vector<double>>;

inline Figures golden_figures(const nlohmann::json& golden) {
  Figures figures;
  for (const char* name :
       {"rewards", "advantages", "correction", "values", "returns", "next_kl_coef"}) {
    figures[name] = golden.value(name, std::vector<double>{});
  }
  for (const char* kind : {"updates", "critic"}) {
    for (std::size_t u = 0; u < golden[kind].size(); ++u) {
      for (const auto& [name, value] : golden[kind][u].items()) {
        figures[kind + ("[" + std::to_string(u) + "]." + name)] = {value};
      }
    }
  }
  for (const auto& [name, value] : golden["metrics"].items()) {
    figures["metric " + name] = {value};
  }
  return figures;
}

struct Tolerance {
  double absolute;
  double relative;
  bool of_terms;  // relative to the terms of sums that nearly cancel: the largest number of the
                  // column, and for a policy's loss the advantages
};

// The mean size of the advantages where the figure is a loss that sums them with both signs; else
// 0.
inline double size_of_terms(const std::string& figure, const Figures& figures) {
  const bool is_policy_loss = figure == "metric loss" || figure.ends_with("policy_loss") ||
                              (figure.starts_with("updates") && figure.ends_with(".loss"));
  const auto advantages = figures.find("advantages");
  if (!is_policy_loss || advantages == figures.end() || advantages->second.empty()) {
    return 0.0;
  }
  double sum = 0.0;
  for (const double advantage : advantages->second) {
    sum += std::abs(advantage);
  }
  return sum / static_cast<double>(advantages->second.size());
}

inline bool close(const std::vector<double>& got, const std::vector<double>& want, std::size_t i,
                  double terms, Tolerance tolerance) {
  double scale = std::max(std::abs(want[i]), tolerance.of_terms ? terms : 0.0);
  for (std::size_t k = 0; tolerance.of_terms && k < want.size(); ++k) {
    scale = std::max(scale, std::abs(want[k]));
  }
  return std::abs(got[i] - want[i]) <= tolerance.absolute + tolerance.relative * scale;
}

// What of `expected` is not in some rank's figures within the tolerance: a line each, of the first
// few.
inline std::string differences(const std::string& name, const std::vector<Figures>& found,
                               const Figures& expected, Tolerance tolerance) {
  std::vector<std::string> lines;
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    const std::string who = "\n" + name + ", rank " + std::to_string(rank) + ": ";
    for (const auto& [figure, want] : expected) {
      const auto at = found[rank].find(figure);
      const std::vector<double> got = at == found[rank].end() ? std::vector<double>{} : at->second;
      if (got.size() != want.size()) {
        lines.push_back(who + std::to_string(got.size()) + " numbers of " + figure + ", expected " +
                        std::to_string(want.size()));
        continue;
      }
      const double terms = size_of_terms(figure, expected);
      for (std::size_t i = 0; i < want.size(); ++i) {
        if (!close(got, want, i, terms, tolerance)) {
          char text[120];
          std::snprintf(text, sizeof text, "[%zu] is %.15g, expected %.15g", i, got[i], want[i]);
          lines.push_back(who + figure + text);
        }
      }
    }
  }
  lines.resize(
      std::min<std::size_t>(lines.size(), 3));  // so that one fault does not bury the others
  return std::accumulate(lines.begin(), lines.end(), std::string());
}

}  // namespace ringside::test
