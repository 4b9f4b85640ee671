#include "rl/rewards/reward_set.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace ringside::rl {

RewardSet::RewardSet(std::string_view spec, const RewardOptions& options)
    : recipe_(parse_rewards(spec)) {
  if (recipe_.empty()) {
    throw std::invalid_argument(
        "rollout.reward is worker: rewards come from workers that have their own, and Ringside's "
        "worker, evaluation and generate have none; name a reward");
  }
  for (const WeightedReward& reward : recipe_) {
    rewards_.push_back(make_reward(reward.name, options));
  }
}

RewardScores RewardSet::score(const RewardInput& input) const {
  RewardScores scores;
  try {
    for (std::size_t i = 0; i < rewards_.size(); ++i) {
      scores.raw.emplace_back(recipe_[i].name, rewards_[i](input));
    }
  } catch (const RewardUnavailable& error) {
    scores.raw.clear();
    scores.failure = error.what();
    return scores;
  }
  scores.total = weighted_total(scores.raw, recipe_);
  return scores;
}

std::vector<RewardScores> RewardSet::score_all(std::span<const RewardInput> inputs,
                                               int64_t threads) const {
  std::vector<RewardScores> scores(inputs.size());
  std::atomic<std::size_t> next{0};
  std::exception_ptr trouble;
  std::mutex trouble_lock;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < inputs.size(); i = next++) {
        scores[i] = score(inputs[i]);
      }
    } catch (...) {
      const std::lock_guard lock(trouble_lock);
      trouble = std::current_exception();
    }
  };
  {
    const auto helpers = std::min<int64_t>(threads, static_cast<int64_t>(inputs.size())) - 1;
    std::vector<std::jthread> pool;
    for (int64_t i = 0; i < helpers; ++i) {
      pool.emplace_back(work);
    }
    work();
  }
  if (trouble) {
    std::rethrow_exception(trouble);
  }
  return scores;
}

}  // namespace ringside::rl
