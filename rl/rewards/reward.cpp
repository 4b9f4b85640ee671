#include "rl/rewards/reward.h"

#include <map>
#include <stdexcept>
#include <string>

#include "rl/rewards/exact_match.h"

namespace ringside::rl {
namespace {

using RewardFactory = Reward (*)(const RewardOptions&);

// One line a reward.
const std::map<std::string_view, RewardFactory>& factories() {
  static const std::map<std::string_view, RewardFactory> kFactories = {
      {"exact_match", exact_match_reward},
  };
  return kFactories;
}

}  // namespace

Reward make_reward(std::string_view name, const RewardOptions& options) {
  const auto found = factories().find(name);
  if (found != factories().end()) {
    return found->second(options);
  }
  std::string known;
  for (const std::string_view other : reward_names()) {
    known.append(known.empty() ? "" : ", ").append(other);
  }
  throw std::invalid_argument("reward '" + std::string(name) +
                              "' is unknown, expected one of: " + known);
}

std::vector<std::string_view> reward_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, factory] : factories()) {
    names.push_back(name);
  }
  return names;
}

}  // namespace ringside::rl
