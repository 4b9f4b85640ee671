#include "rl/rewards/weighted_rewards.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

#include "rl/rewards/answer_text.h"
#include "rl/rewards/reward.h"

namespace ringside::rl {
namespace {

double parse_weight(std::string_view text, std::string_view part) {
  double weight = 0.0;
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), weight);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(weight)) {
    throw std::invalid_argument("the weight '" + std::string(text) + "' in '" + std::string(part) +
                                "' is no finite number; expected \"name * weight\"");
  }
  return weight;
}

WeightedReward parse_part(std::string_view part) {
  if (part.empty()) {
    throw std::invalid_argument(
        "a reward is missing; expected \"name\" or \"name * weight\", separated by commas");
  }
  const std::size_t star = part.find('*');
  const std::string_view name = strip(part.substr(0, star));
  const auto names = reward_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    throw std::invalid_argument(unknown_reward(name));
  }
  const double weight =
      star == std::string_view::npos ? 1.0 : parse_weight(strip(part.substr(star + 1)), part);
  return {std::string(name), weight};
}

const double* find_reward(const NamedRewards& rewards, const std::string& name) {
  const auto found = std::find_if(rewards.begin(), rewards.end(),
                                  [&](const auto& reward) { return reward.first == name; });
  return found == rewards.end() ? nullptr : &found->second;
}

}  // namespace

std::vector<WeightedReward> parse_rewards(std::string_view text) {
  std::vector<WeightedReward> rewards;
  if (strip(text) == "worker") {
    return rewards;
  }
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    WeightedReward reward = parse_part(strip(text.substr(begin, end - begin)));
    for (const WeightedReward& other : rewards) {
      if (other.name == reward.name) {
        throw std::invalid_argument("reward '" + reward.name + "' is named twice");
      }
    }
    rewards.push_back(std::move(reward));
    begin = end + 1;
  }
  return rewards;
}

double weighted_total(const NamedRewards& rewards, std::span<const WeightedReward> recipe) {
  if (rewards.empty()) {
    throw std::invalid_argument("the rollout carries no reward");
  }
  double weighted = 0.0;
  std::string missing;
  bool any = false;
  for (const WeightedReward& wanted : recipe) {
    const double* value = find_reward(rewards, wanted.name);
    if (value == nullptr) {
      missing = wanted.name;
      continue;
    }
    any = true;
    weighted += wanted.weight * *value;
  }
  if (any && !missing.empty()) {
    throw std::invalid_argument("the rollout carries no reward '" + missing +
                                "', which rollout.reward names beside others it does carry");
  }
  if (any) {
    return weighted;
  }
  double sum = 0.0;
  for (const auto& [name, value] : rewards) {
    sum += value;
  }
  return sum;
}

}  // namespace ringside::rl
