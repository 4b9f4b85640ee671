#include "rl/rollouts/step_policy.h"

#include <algorithm>
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

}  // namespace

StepPolicy::StepPolicy(StepRules rules) : rules_(std::move(rules)) {
  constexpr int64_t kMaxRounds = bridge::kFirstHeldOutGroup / kRoundStride;
  require(rules_.prompts_per_step >= 1 && rules_.group_size >= 1 && rules_.max_staleness >= 0,
          std::to_string(rules_.prompts_per_step) + " prompts a step, groups of " +
              std::to_string(rules_.group_size) + ", staleness " +
              std::to_string(rules_.max_staleness) + "; expected at least 1, 1 and 0");
  require(rules_.refill_rounds >= 1 && rules_.refill_rounds <= kMaxRounds,
          std::to_string(rules_.refill_rounds) + " rounds of refill, expected 1 to " +
              std::to_string(kMaxRounds));
  require(rules_.refill_rounds == 1 || rules_.total_reward != nullptr,
          std::to_string(rules_.refill_rounds) +
              " rounds of refill without a total_reward to judge groups by");
}

int64_t StepPolicy::step_of(int64_t group_id) const {
  const bool has_step = group_id >= 0 && group_id / kRoundStride < rules_.refill_rounds;
  return has_step ? first_group(group_id) / rules_.prompts_per_step + 1 : 0;
}

bridge::GroupRange StepPolicy::first_groups(int64_t step) const {
  return {(step - 1) * rules_.prompts_per_step, step * rules_.prompts_per_step};
}

std::optional<int64_t> StepPolicy::next_round(int64_t group_id) const {
  const int64_t next = group_id + kRoundStride;
  return next / kRoundStride < rules_.refill_rounds ? std::optional(next) : std::nullopt;
}

bool StepPolicy::teaches_nothing(std::span<const bridge::Rollout* const> group) const {
  std::optional<double> first;
  for (const bridge::Rollout* rollout : group) {
    const std::optional<double> reward = rules_.total_reward(*rollout);
    first = first ? first : reward;
    if (reward && *reward != *first) {
      return false;
    }
  }
  return true;
}

int64_t StepPolicy::min_version(int64_t group_id) const {
  return std::max<int64_t>(0, step_of(group_id) - 1 - rules_.max_staleness);
}

bool StepPolicy::is_stale(const bridge::Rollout& rollout) const {
  const int64_t trained_at = step_of(rollout.group_id) - 1;
  return std::any_of(
      rollout.versions.begin(), rollout.versions.end(), [&](const bridge::VersionSpan& span) {
        return span.version > trained_at || trained_at - span.version > rules_.max_staleness;
      });
}

}  // namespace ringside::rl
