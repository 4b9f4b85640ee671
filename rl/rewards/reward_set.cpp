#include "rl/rewards/reward_set.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace ringside::rl {
namespace {

void require_bounded(const std::string& name, double value) {
  if (!(std::abs(value) <= kMaxReward)) {  // true for NaN
    std::ostringstream text;
    text << "the reward " << name << " is " << value << ", expected " << -kMaxReward << " to "
         << kMaxReward;
    throw RewardUnavailable(text.str());
  }
}

}  // namespace

RewardSet::RewardSet(std::string_view spec, const RewardOptions& options)
    : recipe_(parse_rewards(spec)) {
  if (recipe_.empty()) {
    throw std::invalid_argument(
        "rollout.reward is worker: rewards come from workers that have their own, and Ringside's "
        "worker, evaluation and generate have none; name a reward");
  }
  for (const WeightedReward& reward : recipe_) {
    const bool python = reward.is_python();
    rewards_.push_back(python ? nullptr : make_reward(reward.name, options));
    python_.push_back(python ? std::make_shared<PythonReward>(reward, options) : nullptr);
  }
}

RewardScores RewardSet::score(const RewardInput& input) const {
  return score_all(std::span(&input, 1), /*threads=*/1).front();
}

std::vector<RewardScores> RewardSet::score_all(std::span<const RewardInput> inputs,
                                               int64_t threads) const {
  std::vector<RewardScores> scores(inputs.size());
  for (RewardScores& one : scores) {
    for (const WeightedReward& reward : recipe_) {
      one.raw.emplace_back(reward.name, 0.0);
    }
  }
  score_each(inputs, threads, scores);
  score_batches(inputs, scores);
  for (RewardScores& one : scores) {
    if (one.failure.empty()) {
      one.total = weighted_total(one.raw, recipe_);
    } else {
      one.raw.clear();
    }
  }
  return scores;
}

void RewardSet::score_each(std::span<const RewardInput> inputs, int64_t threads,
                           std::vector<RewardScores>& scores) const {
  std::atomic<std::size_t> next{0};
  std::exception_ptr trouble;
  std::mutex trouble_lock;
  const auto score_one = [&](std::size_t i) {
    try {
      for (std::size_t r = 0; r < rewards_.size(); ++r) {
        const double value = rewards_[r] ? rewards_[r](inputs[i]) : 0.0;
        require_bounded(recipe_[r].name, value);
        scores[i].raw[r].second = value;
      }
    } catch (const RewardUnavailable& error) {
      scores[i].failure = error.what();
    }
  };
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < inputs.size(); i = next++) {
        score_one(i);
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
}

void RewardSet::score_batches(std::span<const RewardInput> inputs,
                              std::vector<RewardScores>& scores) const {
  for (std::size_t r = 0; r < python_.size(); ++r) {
    if (python_[r] == nullptr) {
      continue;
    }
    std::vector<RewardInput> batch;
    std::vector<std::size_t> of;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (scores[i].failure.empty()) {
        batch.push_back(inputs[i]);
        of.push_back(i);
      }
    }
    const auto results = python_[r]->score(batch);
    for (std::size_t b = 0; b < results.size(); ++b) {
      scores[of[b]].raw[r].second = results[b].value;
      scores[of[b]].failure = results[b].failure;
    }
  }
}

}  // namespace ringside::rl
