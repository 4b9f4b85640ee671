#include "rl/data/rollout_rewards.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "rl/config/teacher.h"

namespace ringside::rl {
namespace {

// Fills the values of failed samples with the mean of their group; bitwise exact if the others are
// equal.
void fill_unscored(std::vector<double>& values, std::span<const bridge::Rollout> rollouts,
                   int64_t group_size) {
  for (std::size_t first = 0; first < rollouts.size();
       first += static_cast<std::size_t>(group_size)) {
    const std::size_t end = std::min(rollouts.size(), first + static_cast<std::size_t>(group_size));
    double mean = 0.0;
    int64_t scored = 0;
    for (std::size_t r = first; r < end; ++r) {
      if (is_scored(rollouts[r])) {
        ++scored;
        mean += (values[r] - mean) / static_cast<double>(scored);
      }
    }
    for (std::size_t r = first; r < end; ++r) {
      values[r] = is_scored(rollouts[r]) ? values[r] : mean;
    }
  }
}

// The names of all rollouts' rewards in alphabetical order, with their values; 0 for a rollout
// without that reward.
void fill_by_name(SampleRewards& rewards, std::span<const bridge::Rollout> rollouts,
                  const Config& config) {
  std::map<std::string, std::vector<double>> by_name;
  for (std::size_t r = 0; r < rollouts.size(); ++r) {
    for (const auto& [name, value] : rollouts[r].rewards) {
      by_name.try_emplace(name, rollouts.size(), 0.0).first->second[r] = value;
    }
  }
  const auto recipe = parse_rewards(config.rollout.reward);
  const bool own_names = std::any_of(recipe.begin(), recipe.end(),
                                     [&](const auto& part) { return by_name.contains(part.name); });
  for (auto& [name, values] : by_name) {
    fill_unscored(values, rollouts, config.rollout.group_size);
    const auto part =
        std::find_if(recipe.begin(), recipe.end(), [&](const auto& p) { return p.name == name; });
    rewards.names.push_back(name);
    rewards.weight.push_back(part != recipe.end() ? part->weight : own_names ? 0.0 : 1.0);
    rewards.by_name.push_back(std::move(values));
  }
}

// The table's index of the last loss token before completion position `end`, or the sample's first;
// -1 when it has none.
int64_t token_of_turn(const std::vector<bool>& mask, int64_t end, int64_t first_token) {
  int64_t before = std::count(mask.begin(), mask.begin() + end, true);
  const bool any = before > 0 || std::count(mask.begin() + end, mask.end(), true) > 0;
  return any ? first_token + std::max<int64_t>(0, before - 1) : -1;
}

}  // namespace

bool is_scored(const bridge::Rollout& rollout) {
  return !rollout.rewards.empty() || !rollout.turn_rewards.empty() || !rollout.advantages.empty();
}

namespace {

// The weighted sum of the rewards of the whole sample.
double sample_total(const bridge::Rollout& rollout, std::span<const WeightedReward> recipe) {
  const bool judged_otherwise = !rollout.turn_rewards.empty() || !rollout.advantages.empty();
  return rollout.rewards.empty() && judged_otherwise ? 0.0
                                                     : weighted_total(rollout.rewards, recipe);
}

// reward(rollout) of each rollout, with the values of failed samples filled. Errors name the
// rollout.
template <class RewardOf>
std::vector<double> one_a_rollout(std::span<const bridge::Rollout> rollouts, const Config& config,
                                  RewardOf reward) {
  const auto recipe = parse_rewards(config.rollout.reward);
  std::vector<double> totals;
  for (const bridge::Rollout& rollout : rollouts) {
    try {
      totals.push_back(is_scored(rollout) ? reward(rollout, recipe) : 0.0);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("rollout " + rollout.rollout_id + ": " + error.what());
    }
  }
  fill_unscored(totals, rollouts, config.rollout.group_size);
  return totals;
}

}  // namespace

double total_reward(const bridge::Rollout& rollout, std::span<const WeightedReward> recipe) {
  return std::accumulate(rollout.turn_rewards.begin(), rollout.turn_rewards.end(),
                         sample_total(rollout, recipe));
}

double shaped_reward(const bridge::Rollout& rollout, std::span<const WeightedReward> recipe,
                     const Config& config) {
  SampleRewards rewards;
  rewards.total = {config.rollout.reward == kNoReward ? 0.0 : sample_total(rollout, recipe)};
  const auto length = static_cast<int64_t>(rollout.completion_ids.size());
  rewards = shape_rewards(std::move(rewards), {&length, 1}, config.rollout.max_completion_tokens,
                          config.algorithm.reward);
  const double turns =
      std::accumulate(rollout.turn_rewards.begin(), rollout.turn_rewards.end(), 0.0);
  return rewards.total[0] +
         (config.rollout.reward == kNoReward ? 0.0 : config.algorithm.reward.scale * turns);
}

std::optional<double> compared_by(const bridge::Rollout& rollout,
                                  std::span<const WeightedReward> recipe, const Config& config) {
  const std::string& by = config.algorithm.dynamic_sampling_by;
  if (!is_scored(rollout)) {
    return std::nullopt;
  }
  if (by == "total") {
    return total_reward(rollout, recipe);
  }
  if (by == "shaped") {
    return shaped_reward(rollout, recipe, config);
  }
  const auto found =
      std::ranges::find_if(rollout.rewards, [&](const auto& reward) { return reward.first == by; });
  return found == rollout.rewards.end() ? std::nullopt : std::optional(found->second);
}

SampleRewards sample_rewards(std::span<const bridge::Rollout> rollouts,
                             const std::vector<std::vector<bool>>& masks, const StepColumns& table,
                             const Config& config) {
  SampleRewards rewards;
  fill_by_name(rewards, rollouts, config);
  rewards.total = one_a_rollout(rollouts, config, sample_total);  // rewards of turns are separate
  std::vector<int64_t> lengths;
  for (std::size_t r = 0; r < rollouts.size(); ++r) {
    const bridge::Rollout& rollout = rollouts[r];
    rewards.scored.push_back(is_scored(rollout));
    const auto length = static_cast<int64_t>(rollout.completion_ids.size());
    lengths.push_back(length);
    for (std::size_t t = 0; t < rollout.turn_rewards.size(); ++t) {
      const int64_t end =
          t + 1 < rollout.turn_offsets.size() ? rollout.turn_offsets[t + 1] : length;
      const double value = rollout.turn_rewards[t] * config.algorithm.reward.scale;
      const int64_t token = token_of_turn(masks[r], end, table.begin[r]);
      if (token >= 0) {
        rewards.turns.push_back({static_cast<int64_t>(r), token, value});
      } else {
        // There is no token for it, but the group's statistics count it.
        rewards.total[r] += rollout.turn_rewards[t];
      }
    }
  }
  if (config.rollout.reward == kNoReward) {  // recorded ones only show
    std::ranges::fill(rewards.weight, 0.0);
    std::ranges::fill(rewards.total, 0.0);
    rewards.turns.clear();
  }
  return shape_rewards(std::move(rewards), lengths, config.rollout.max_completion_tokens,
                       config.algorithm.reward);
}

}  // namespace ringside::rl
