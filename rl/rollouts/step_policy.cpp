#include "rl/rollouts/step_policy.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringside::rl {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) {
    throw std::invalid_argument("step rules: " + what);
  }
}

void check(const StepRules& rules) {
  constexpr int64_t kMaxRounds = bridge::kFirstHeldOutGroup / kRoundStride;
  require(rules.prompts_per_step >= 1 && rules.group_size >= 1 && rules.max_staleness >= 0,
          std::to_string(rules.prompts_per_step) + " prompts a step, groups of " +
              std::to_string(rules.group_size) + ", staleness " +
              std::to_string(rules.max_staleness) + "; expected at least 1, 1 and 0");
  require(rules.refill_rounds >= 1 && rules.refill_rounds <= kMaxRounds,
          std::to_string(rules.refill_rounds) + " rounds of refill, expected 1 to " +
              std::to_string(kMaxRounds));
  require(rules.refill_rounds == 1 || rules.chosen_groups == nullptr,
          "refill of groups that a curriculum chooses");
  require(rules.refill_rounds == 1 || rules.total_reward != nullptr,
          std::to_string(rules.refill_rounds) +
              " rounds of refill without a total_reward to judge groups by");
  require(rules.straggler_timeout.count() == 0 ||
              (rules.min_group_size >= 2 && rules.min_group_size < rules.group_size),
          "groups of at least " + std::to_string(rules.min_group_size) + " of " +
              std::to_string(rules.group_size) +
              " samples, expected at least 2 and fewer than all");
}

bridge::GroupRule rule_of(const StepRules& rules, int64_t group_id) {
  bridge::GroupRule rule;
  const bool chosen = rules.chosen_groups != nullptr;
  const int64_t slot = group_id % kRoundStride;
  rule.first_group = chosen ? group_id : slot;
  const bool has_step = group_id >= 0 && (chosen || group_id / kRoundStride < rules.refill_rounds);
  rule.step = has_step ? slot / rules.prompts_per_step + 1 : 0;
  if (group_id / kRoundStride + 1 < rules.refill_rounds) {
    rule.next_round = group_id + kRoundStride;
  }
  rule.group_size = static_cast<int32_t>(rules.group_size);
  rule.max_version = rule.step - 1;  // that the step starts from
  rule.min_version = std::max<int64_t>(0, rule.max_version - rules.max_staleness);
  return rule;
}

bool teaches_nothing(std::span<const std::optional<double>> rewards) {
  std::optional<double> first;
  for (const std::optional<double>& reward : rewards) {
    first = first ? first : reward;
    if (reward && *reward != *first) {
      return false;
    }
  }
  return true;
}

}  // namespace

bridge::GroupPolicy step_policy(StepRules rules) {
  check(rules);
  const auto shared = std::make_shared<const StepRules>(std::move(rules));
  return {.first_step = shared->first_step,
          .rule_of = [shared](int64_t group_id) { return rule_of(*shared, group_id); },
          .first_groups =
              [shared](int64_t step) {
                if (shared->chosen_groups) {
                  return shared->chosen_groups(step);
                }
                std::vector<int64_t> slots(static_cast<std::size_t>(shared->prompts_per_step));
                std::iota(slots.begin(), slots.end(), (step - 1) * shared->prompts_per_step);
                return slots;
              },
          .reward_of =
              [shared](const bridge::Rollout& rollout) {
                return shared->total_reward ? shared->total_reward(rollout) : std::nullopt;
              },
          .teaches_nothing = teaches_nothing,
          .straggler_timeout = shared->straggler_timeout,
          .min_group_size = static_cast<int32_t>(shared->min_group_size)};
}

}  // namespace ringside::rl
