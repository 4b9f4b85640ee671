// The text of rollout.reward: which rewards, and with which weights they add up. Torch-free; used
// by the worker that computes rewards, the trainer that adds them up again, and the checks of a
// configuration.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ringside::rl {

struct WeightedReward {
  std::string name;
  double weight = 1.0;
  bool operator==(const WeightedReward&) const = default;
};

// A reward's value under its name, before weights.
using NamedRewards = std::vector<std::pair<std::string, double>>;

// Reads "name" or "name * weight, name * weight": white space is free, a weight is any finite
// number (negative too) and 1 when it is left out. "worker" alone is no recipe: rewards are the
// workers' own, under any names, and their plain sum counts. Throws std::invalid_argument saying
// what is wrong with which part: nothing there, an unknown name (the known ones and the nearest
// follow), a weight that is no number, a name twice.
std::vector<WeightedReward> parse_rewards(std::string_view text);

// The weighted sum of a rollout's raw rewards.
//   - Every reward of `recipe` must be there once: std::invalid_argument names one that is not. A
//   reward that only the
//     rollout has is carried for the metrics and counts nothing.
//   - When the rollout has none of the recipe's names - there are none for "worker", and a recorded
//   file may have others -
//     their plain sum.
//   - A rollout without any reward (finish reason error) has no total: std::invalid_argument. Leave
//   it out before.
double weighted_total(const NamedRewards& rewards, std::span<const WeightedReward> recipe);

}  // namespace ringside::rl
