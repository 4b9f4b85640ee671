// Policy of training steps: the groups of a step, staleness, and dynamic sampling by refill (Yu et
// al. 2025, DAPO), which replaces groups whose rewards are all equal by new prompts.
//
// Step t (from 1) trains on the slots [(t-1) G, t G) and starts from weights of version t-1. A slot
// is filled by the group of the same number. If the rewards of that group are all equal and refill
// is on, the slot is filled by the group of the next round. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/trainer/group_policy.h"

namespace ringside::rl {

// group_id = slot + round * kRoundStride. The stride exceeds the slots of any run, so a group id
// determines slot and round and is a position of its own in the data order.
inline constexpr int64_t kRoundStride = int64_t{1} << 40;

struct StepRules {
  int64_t prompts_per_step = 1;  // G
  int64_t group_size = 1;
  // Largest distance in versions from a rollout's oldest token to the step that trains on it.
  int64_t max_staleness = 0;
  int64_t first_step = 1;  // of this start of the trainer
  // Number of prompts tried for a slot; the last one's group is always used. 1: no refill.
  int64_t refill_rounds = 1;
  // The reward by which a group's rollouts are compared; nullopt for a rollout without a score.
  // Required if refill_rounds > 1. A pure function, because the bridge's thread calls it and calls
  // it again for the same rollouts after a restart. It must not throw.
  std::function<std::optional<double>(const bridge::Rollout&)> total_reward = {};
};

// Thread safety: every method, if total_reward is a pure function.
class StepPolicy final : public bridge::GroupPolicy {
 public:
  // Throws: std::invalid_argument naming the number, for rules below 1 (staleness below 0), for
  // more rounds than group ids can encode, and for refill without total_reward.
  explicit StepPolicy(StepRules rules);

  int64_t first_step() const override { return rules_.first_step; }
  int64_t step_of(int64_t group_id) const override;
  bridge::GroupRange first_groups(int64_t step) const override;
  int64_t first_group(int64_t group_id) const override { return group_id % kRoundStride; }
  std::optional<int64_t> next_round(int64_t group_id) const override;
  // Samples without a score are ignored. A group without any score counts as one of equal rewards.
  bool teaches_nothing(std::span<const bridge::Rollout* const> group) const override;
  int32_t group_size() const override { return static_cast<int32_t>(rules_.group_size); }
  int64_t min_version(int64_t group_id) const override;
  // A rollout of several versions is checked against all of them, so its oldest token decides.
  bool is_stale(const bridge::Rollout& rollout) const override;

 private:
  StepRules rules_;
};

}  // namespace ringside::rl
