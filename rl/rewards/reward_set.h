// Set of a recipe's rewards: raw values of each and the weighted total, for a batch of completions
// at a time.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rl/rewards/python_reward.h"
#include "rl/rewards/reward.h"
#include "rl/rewards/weighted_rewards.h"

namespace ringside::rl {

struct RewardScores {
  NamedRewards raw;     // in the recipe's order; empty when there is no score
  double total = 0.0;   // weighted_total(raw)
  std::string failure;  // why there is no score (RewardUnavailable); "" when there is one
};

// Immutable.
// Thread safety: all methods.
class RewardSet {
 public:
  // spec: the text of rollout.reward.
  // Throws: as parse_rewards and make_reward do; std::invalid_argument for "worker", which has no
  // reward here.
  RewardSet(std::string_view spec, const RewardOptions& options);

  // The scores of one completion.
  // Blocks: as long as the rewards do.
  RewardScores score(const RewardInput& input) const;

  // The same for each input, on up to `threads` threads, because rewards may wait for programs and
  // servers. Python functions get the inputs as batches afterwards, without those that have no
  // score already. The inputs' views must live until it returns. An exception of a thread is
  // rethrown after all threads have ended. Never throws for any completion.
  // Blocks: as long as the rewards do.
  std::vector<RewardScores> score_all(std::span<const RewardInput> inputs, int64_t threads) const;

  const std::vector<WeightedReward>& recipe() const { return recipe_; }

 private:
  void score_each(std::span<const RewardInput> inputs, int64_t threads,
                  std::vector<RewardScores>& scores) const;
  void score_batches(std::span<const RewardInput> inputs, std::vector<RewardScores>& scores) const;

  std::vector<WeightedReward> recipe_;
  std::vector<Reward> rewards_;                        // null where `python_` has one
  std::vector<std::shared_ptr<PythonReward>> python_;  // null where `rewards_` has one
};

}  // namespace ringside::rl
