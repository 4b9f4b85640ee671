#include "rl/trainer/policy_step.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace ringside::rl {
namespace {

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// The rewards of all steps' samples, in order.
SampleRewards joined_rewards(std::span<const PolicyStep> steps, std::size_t samples) {
  SampleRewards all;
  struct Reward {
    double weight = 0.0;
    std::vector<double> values;
  };
  std::map<std::string, Reward> by_name;
  std::size_t first = 0;
  for (const PolicyStep& step : steps) {
    const SampleRewards& own = step.batch.rewards;
    for (std::size_t k = 0; k < own.names.size(); ++k) {
      Reward& reward = by_name[own.names[k]];
      reward.weight = own.weight[k];
      reward.values.resize(samples, 0.0);
      std::ranges::copy(own.by_name[k], reward.values.begin() + static_cast<std::ptrdiff_t>(first));
    }
    append(all.total, own.total);
    all.scored.insert(all.scored.end(), own.scored.begin(), own.scored.end());
    for (TurnReward turn : own.turns) {
      turn.sample += static_cast<int64_t>(first);
      all.turns.push_back(turn);
    }
    first += step.rollouts.size();
  }
  for (auto& [name, reward] : by_name) {
    all.names.push_back(name);
    all.weight.push_back(reward.weight);
    all.by_name.push_back(std::move(reward.values));
  }
  return all;
}

// Those of the first passes before all others, as for one policy.
std::vector<UpdateResult> joined_updates(std::span<const PolicyStep> steps) {
  std::vector<UpdateResult> first, others;
  for (const PolicyStep& step : steps) {
    const auto& own = step.updates.policy;
    const auto middle =
        own.begin() + std::min(std::ssize(own), std::ssize(step.batch.mini_batches));
    first.insert(first.end(), own.begin(), middle);
    others.insert(others.end(), middle, own.end());
  }
  append(first, others);
  return first;
}

}  // namespace

PolicyStep joined_step(std::span<const PolicyStep> steps) {
  PolicyStep all;
  double tokens = 0.0, kl = 0.0, kl_coef = 0.0;
  all.updates.policies = 0;
  for (const PolicyStep& step : steps) {
    append(all.rollouts, step.rollouts);
    append(all.advantages.advantage, step.advantages.advantage);
    append(all.advantages.sample_score, step.advantages.sample_score);
    const auto own = static_cast<double>(step.batch.columns.tokens());
    tokens += own;
    kl += own * step.advantages.kl;
    kl_coef += step.updates.kl_coef;
    all.updates.policies += step.updates.policy.empty() ? 0 : 1;
  }
  all.advantages.kl = tokens > 0 ? kl / tokens : 0.0;
  all.updates.kl_coef = steps.empty() ? 0.0 : kl_coef / static_cast<double>(steps.size());
  all.updates.policy = joined_updates(steps);
  all.batch.rewards = joined_rewards(steps, all.rollouts.size());
  return all;
}

Metrics adapter_metrics(const std::string& name, Metrics metrics) {
  for (auto& [key, value] : metrics) {
    key.insert(0, "adapter/" + name + "/");
  }
  return metrics;
}

}  // namespace ringside::rl
