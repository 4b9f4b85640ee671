// Set of a recipe's rewards: raw values of each and the weighted total, for a batch of completions
// at a time.
#pragma once

#include <span>
#include <string>
#include <vector>

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
  // Throws: as parse_rewards and make_reward do.
  RewardSet(std::string_view spec, const RewardOptions& options);

  // The scores of one completion. Never throws for any completion.
  // Blocks: as long as the rewards do.
  RewardScores score(const RewardInput& input) const;

  // The same for each input, on up to `threads` threads, because rewards may wait for programs and
  // servers. The inputs' views must live until it returns. An exception of a thread is rethrown
  // after all threads have ended.
  std::vector<RewardScores> score_all(std::span<const RewardInput> inputs, int64_t threads) const;

  const std::vector<WeightedReward>& recipe() const { return recipe_; }

 private:
  std::vector<WeightedReward> recipe_;
  std::vector<Reward> rewards_;
};

}  // namespace ringside::rl
