#include "rl/rewards/reward.h"

#include <map>
#include <stdexcept>

#include "rl/rewards/exact_match.h"

namespace ringside::rl {
namespace {

using RewardFactory = Reward (*)(const RewardOptions&);

// One line a reward.
const std::map<std::string, RewardFactory, std::less<>>& factories() {
  static const std::map<std::string, RewardFactory, std::less<>> kFactories = {
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
  for (const std::string& other : reward_names()) {
    known += (known.empty() ? "" : ", ") + other;
  }
  throw std::invalid_argument("reward '" + std::string(name) +
                              "' is unknown, expected one of: " + known);
}

std::vector<std::string> reward_names() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories()) {
    names.push_back(name);
  }
  return names;
}

}  // namespace ringside::rl
