#include "rl/step_metrics.h"

#include <algorithm>
#include <functional>

#include "rl/algorithm/advantages.h"
#include "rl/data/training_batch.h"

namespace ringside::rl {
namespace {

double mean_over(const std::vector<UpdateResult>& updates,
                 const std::function<double(const UpdateResult&)>& value) {
  double sum = 0.0;
  for (const UpdateResult& update : updates) {
    sum += value(update);
  }
  return sum / static_cast<double>(updates.size());
}

// Mean over all loss tokens of the optimizer steps together.
double token_mean(const std::vector<UpdateResult>& updates, double LossSums::*sum) {
  double total = 0.0;
  double tokens = 0.0;
  for (const UpdateResult& update : updates) {
    total += update.sums.*sum;
    tokens += update.sums.tokens;
  }
  return tokens > 0 ? total / tokens : 0.0;
}

std::vector<double> rewards_of(std::span<const bridge::Rollout> rollouts) {
  std::vector<double> rewards;
  for (const bridge::Rollout& rollout : rollouts) {
    rewards.push_back(total_reward(rollout));
  }
  return rewards;
}

void append_completion_metrics(Metrics& metrics, std::span<const bridge::Rollout> rollouts,
                               int64_t weight_version) {
  double tokens = 0.0, completion_tokens = 0.0, clipped = 0.0, staleness = 0.0;
  double shortest = rollouts.empty() ? 0.0 : static_cast<double>(rollouts[0].completion_ids.size());
  double longest = shortest;
  for (const bridge::Rollout& r : rollouts) {
    const auto length = static_cast<double>(r.completion_ids.size());
    tokens += length + static_cast<double>(r.prompt_ids.size());
    completion_tokens += length;
    shortest = std::min(shortest, length);
    longest = std::max(longest, length);
    clipped += r.finish_reason == bridge::FinishReason::kLength ? 1.0 : 0.0;
    const int64_t sampled_at = r.versions.empty() ? weight_version : r.versions.front().version;
    staleness = std::max(staleness, static_cast<double>(weight_version - sampled_at));
  }
  const double count = std::max<double>(1.0, static_cast<double>(rollouts.size()));
  metrics.emplace_back("num_tokens", tokens);
  metrics.emplace_back("completions/mean_length", completion_tokens / count);
  metrics.emplace_back("completions/min_length", shortest);
  metrics.emplace_back("completions/max_length", longest);
  metrics.emplace_back("completions/clipped_ratio", clipped / count);
  metrics.emplace_back("staleness/max", staleness);
}

}  // namespace

Metrics sequence_metrics(const std::vector<UpdateResult>& updates) {
  const auto mean = [&](double SequenceFigures::*figure) {
    return mean_over(updates, [&](const UpdateResult& u) { return u.sequence.*figure; });
  };
  return {{"sp/prefix_saving", mean(&SequenceFigures::prefix_saving)},
          {"sp/pair_saving", mean(&SequenceFigures::pair_saving)},
          {"sp/bytes_predicted", mean(&SequenceFigures::predicted_bytes)},
          {"sp/bytes_sent", mean(&SequenceFigures::sent_bytes)},
          {"sp/balance_tokens", mean(&SequenceFigures::balance_tokens)},
          {"sp/balance_pairs", mean(&SequenceFigures::balance_pairs)}};
}

Metrics update_metrics(const std::vector<UpdateResult>& updates) {
  return {{"loss", mean_over(updates, [](const UpdateResult& u) { return u.sums.loss; })},
          {"policy_loss", mean_over(updates, [](const UpdateResult& u) { return u.sums.policy_loss; })},
          {"kl", token_mean(updates, &LossSums::kl)},
          {"entropy", token_mean(updates, &LossSums::entropy)},
          {"grad_norm", mean_over(updates, [](const UpdateResult& u) { return u.grad_norm; })}};
}

Metrics grpo_step_metrics(std::span<const bridge::Rollout> rollouts,
                              const std::vector<UpdateResult>& updates, int64_t weight_version,
                              const Config& config) {
  Metrics metrics = update_metrics(updates);
  const auto stats = reward_statistics(rewards_of(rollouts), config.rollout.group_size);
  metrics.emplace_back("reward", stats.reward);
  metrics.emplace_back("reward_std", stats.reward_std);
  metrics.emplace_back("frac_reward_zero_std", stats.frac_reward_zero_std);
  metrics.emplace_back("clip_ratio/low_mean", token_mean(updates, &LossSums::ratio_clipped_low));
  metrics.emplace_back("clip_ratio/high_mean", token_mean(updates, &LossSums::ratio_clipped_high));
  // Before the first update the current policy is the one the rollouts claim, when they are not stale.
  const std::vector<UpdateResult> first(updates.begin(), updates.begin() + 1);
  metrics.emplace_back("sampling/sampling_logp_difference/mean",
                       token_mean(first, &LossSums::sampling_difference));
  metrics.emplace_back("sampling/sampling_logp_difference/max", first[0].sums.sampling_difference_max);
  metrics.emplace_back("token_mult_prob_error", token_mean(first, &LossSums::mult_prob_error));
  metrics.emplace_back("rollout_corr/kl", token_mean(first, &LossSums::rollout_kl));
  append_completion_metrics(metrics, rollouts, weight_version);
  return metrics;
}

}  // namespace ringside::rl
