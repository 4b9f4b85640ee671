#include "rl/report/reward_alarms.h"

#include <algorithm>

#include "rl/algorithm/advantages.h"

namespace ringside::rl {
namespace {

bool all_zero(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return value == 0.0; });
}

bool is_due(int64_t steps) {
  while (steps > RewardAlarms::kSteps && steps % 2 == 0) {
    steps /= 2;
  }
  return steps == RewardAlarms::kSteps;
}

}  // namespace

std::vector<std::string> RewardAlarms::add(Metrics& metrics, const SampleRewards& rewards,
                                           std::span<const double> sample_score,
                                           std::span<const double> advantage, int64_t group_size) {
  std::vector<std::string> sentences;
  if ((rewards.names.empty() && rewards.turns.empty()) || sample_score.empty()) {
    return sentences;
  }
  const bool zero = all_zero(sample_score);
  const auto equal = groups_without_variance(sample_score, group_size);
  const bool taught_nothing =
      all_zero(advantage) && std::find(equal.begin(), equal.end(), false) == equal.end();
  zero_steps_ = zero ? zero_steps_ + 1 : 0;
  equal_steps_ = taught_nothing && !zero ? equal_steps_ + 1 : 0;
  metrics.emplace_back("alarm/zero_reward", zero_steps_ >= kSteps ? 1.0 : 0.0);
  metrics.emplace_back("alarm/equal_rewards", equal_steps_ >= kSteps ? 1.0 : 0.0);
  if (is_due(zero_steps_)) {
    sentences.push_back("all rewards are 0 for " + std::to_string(zero_steps_) +
                        " steps: nothing is learnt. Look at completions (log.rollouts=true) and at "
                        "how they are judged: "
                        "rollout.reward, rollout.reward_separator, data.answer_key; at "
                        "data.chat_template; and whether "
                        "rollout.max_completion_tokens cuts them (completions/clipped_ratio)");
  }
  if (is_due(equal_steps_)) {
    sentences.push_back(
        "every group's rewards are equal for " + std::to_string(equal_steps_) +
        " steps: no gradient. The prompts are too easy or too hard: raise rollout.group_size or "
        "rollout.temperature, set algorithm.dynamic_sampling=refill, or use a reward with more "
        "values "
        "(rollout.reward)");
  }
  return sentences;
}

}  // namespace ringside::rl
