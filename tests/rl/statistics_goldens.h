// The batches of tests/goldens/advantages.json as the tables that advantages and corrections read.
// Torch-free.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "rl/algorithm/token_advantages.h"

namespace ringside::test {

inline const nlohmann::json& advantage_goldens() {
  static const auto json =
      nlohmann::json::parse(std::ifstream(RINGSIDE_GOLDENS "/advantages.json"));
  return json;
}

inline rl::StepColumns golden_table(std::size_t batch) {
  const auto& b = advantage_goldens()["batches"].at(batch);
  rl::StepColumns table{b["begin"], b["rollout"], b["old"], b["reference"], b["value"]};
  table.squares = b["squares"].get<std::vector<double>>();
  return table;
}

inline rl::SampleRewards golden_rewards(std::size_t batch) {
  const auto& b = advantage_goldens()["batches"].at(batch);
  rl::SampleRewards rewards{
      {"first", "second", "third"}, b["weight"], b["by_name"], b["total"], {}};
  for (const auto& turn : b["turns"]) {
    rewards.turns.push_back({turn[0], turn[1], turn[2]});
  }
  rewards.scored = b["scored"].get<std::vector<bool>>();
  return rewards;
}

// Largest difference, relative where numbers are above 1. Lengths that differ are infinitely far
// apart.
inline double distance(const std::vector<double>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double worst = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double apart = std::abs(got[i] - want[i]) / std::max(1.0, std::abs(want[i]));
    worst = std::isnan(apart) ? std::numeric_limits<double>::infinity() : std::max(worst, apart);
  }
  return worst;
}

}  // namespace ringside::test
