#include "rl/trainer/step_metrics.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>

#include "rl/algorithm/advantages.h"
#include "rl/config/teacher.h"
#include "rl/data/rollout_rewards.h"

namespace ringside::rl {
namespace {

double mean_over(const std::vector<UpdateResult>& updates,
                 const std::function<double(const UpdateResult&)>& value) {
  double sum = 0.0;
  for (const UpdateResult& update : updates) {
    sum += value(update);
  }
  return updates.empty() ? 0.0 : sum / static_cast<double>(updates.size());
}

double share_of(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

// Means and standard deviations of each reward by its name, as TRL logs them.
void append_reward_metrics(Metrics& metrics, std::span<const bridge::Rollout> rollouts,
                           const SampleRewards& rewards, const StepAdvantages& advantages,
                           const Config& config) {
  if (std::none_of(rollouts.begin(), rollouts.end(), is_scored)) {
    return;
  }
  if (config.algorithm.advantage.estimator == AdvantageEstimator::kGiven && rewards.names.empty() &&
      rewards.turns.empty()) {
    return;  // the rollouts carry advantages and no rewards
  }
  const auto stats =
      reward_statistics(advantages.sample_score, config.rollout.group_size, rewards.scored);
  metrics.emplace_back("reward", stats.reward);
  metrics.emplace_back("reward_std", stats.reward_std);
  metrics.emplace_back("frac_reward_zero_std", stats.frac_reward_zero_std);
  for (std::size_t k = 0; k < rewards.names.size(); ++k) {
    // One group of all samples: its statistics are the step's.
    const auto all = reward_statistics(
        rewards.by_name[k], static_cast<int64_t>(rewards.by_name[k].size()), rewards.scored);
    metrics.emplace_back("rewards/" + rewards.names[k] + "/mean", all.reward);
    metrics.emplace_back("rewards/" + rewards.names[k] + "/std", all.reward_std);
  }
  if (!rewards.baseline.empty()) {
    metrics.emplace_back("reward_greedy",
                         std::accumulate(rewards.baseline.begin(), rewards.baseline.end(), 0.0) /
                             static_cast<double>(rewards.baseline.size()));
  }
}

void append_advantage_metrics(Metrics& metrics, const std::vector<double>& advantage) {
  if (advantage.empty()) {
    return;
  }
  const auto [low, high] = std::minmax_element(advantage.begin(), advantage.end());
  const double sum = std::accumulate(advantage.begin(), advantage.end(), 0.0);
  metrics.emplace_back("critic/advantages/mean", sum / static_cast<double>(advantage.size()));
  metrics.emplace_back("critic/advantages/min", *low);
  metrics.emplace_back("critic/advantages/max", *high);
}

// Mismatch over the first pass of the step's samples.
void append_mismatch_metrics(Metrics& metrics, const StepFigures& first_pass) {
  metrics.emplace_back("sampling/sampling_logp_difference/mean", first_pass["sampling_difference"]);
  metrics.emplace_back("sampling/sampling_logp_difference/max",
                       first_pass["sampling_difference_max"]);
  metrics.emplace_back("token_mult_prob_error", first_pass["mult_prob_error"]);
  metrics.emplace_back("rollout_corr/kl", first_pass["rollout_kl"]);
  metrics.emplace_back("rollout_corr/k3_kl", first_pass["rollout_k3"]);
  metrics.emplace_back("rollout_corr/chi2_token", first_pass["rho_squared"] - 1.0);
}

// Importance weights: those that are applied, or without a correction the raw ratios.
void append_weight_metrics(Metrics& metrics, const CorrectionResult& correction,
                           const StepFigures& first_pass) {
  const double raw = first_pass["rho"];
  const bool corrected = !correction.weight.empty();
  const CorrectionStatistics& s = correction.statistics;
  metrics.emplace_back("rollout_corr/rollout_is_mean", corrected ? s.rollout_is_mean : raw);
  // (mean weight)^2 / mean squared weight: 1 when all weigh the same.
  metrics.emplace_back(
      "rollout_corr/rollout_is_eff_sample_size",
      corrected ? s.rollout_is_eff_sample_size : share_of(raw * raw, first_pass["rho_squared"]));
}

// Of weights that the losses computed with the current policy; over all mini-batches.
void append_current_weight_metrics(Metrics& metrics, const StepFigures& figures) {
  const double mean = figures["current_weight"];
  metrics.emplace_back("rollout_corr/rollout_is_mean", mean);
  metrics.emplace_back("rollout_corr/rollout_is_eff_sample_size",
                       share_of(mean * mean, figures["current_weight_squared"]));
  metrics.emplace_back("rollout_corr/rollout_rs_masked_fraction", figures["current_rejected"]);
}

// Metrics that only a correction computes. The token metrics above do not need one.
void append_correction_metrics(Metrics& metrics, const CorrectionResult& correction) {
  if (correction.weight.empty()) {
    return;
  }
  const CorrectionStatistics& s = correction.statistics;
  metrics.emplace_back("rollout_corr/chi2_seq", s.chi2_seq);
  metrics.emplace_back("rollout_corr/rollout_is_ratio_fraction_high",
                       s.rollout_is_ratio_fraction_high);
  metrics.emplace_back("rollout_corr/rollout_is_ratio_fraction_low",
                       s.rollout_is_ratio_fraction_low);
  metrics.emplace_back("rollout_corr/rollout_rs_masked_fraction", s.rollout_rs_masked_fraction);
  metrics.emplace_back("rollout_corr/training_ppl", s.training_ppl);
  metrics.emplace_back("rollout_corr/rollout_ppl", s.rollout_ppl);
  metrics.emplace_back("rollout_corr/ppl_ratio", s.ppl_ratio);
}

// Staleness by each token's own version, so that a completion that continued under newer weights is
// counted correctly.
void append_staleness_metrics(Metrics& metrics, std::span<const bridge::Rollout> rollouts,
                              int64_t weight_version) {
  double oldest = 0.0, summed = 0.0, tokens = 0.0, spans = 0.0;
  for (const bridge::Rollout& rollout : rollouts) {
    for (const bridge::VersionSpan& span : rollout.versions) {
      const auto age = static_cast<double>(weight_version - span.version);
      oldest = std::max(oldest, age);
      summed += age * static_cast<double>(span.end - span.begin);
      tokens += static_cast<double>(span.end - span.begin);
    }
    spans += static_cast<double>(rollout.versions.size());
  }
  metrics.emplace_back("staleness/max", oldest);
  metrics.emplace_back("staleness/mean", share_of(summed, tokens));
  metrics.emplace_back("staleness/spans_mean",
                       share_of(spans, static_cast<double>(rollouts.size())));
}

void append_completion_metrics(Metrics& metrics, std::span<const bridge::Rollout> rollouts) {
  double tokens = 0.0, completion_tokens = 0.0, clipped = 0.0, aborted = 0.0, turns = 0.0;
  double shortest = rollouts.empty() ? 0.0 : static_cast<double>(rollouts[0].completion_ids.size());
  double longest = shortest;
  for (const bridge::Rollout& r : rollouts) {
    const auto length = static_cast<double>(r.completion_ids.size());
    tokens += length + static_cast<double>(r.prompt_ids.size());
    completion_tokens += length;
    shortest = std::min(shortest, length);
    longest = std::max(longest, length);
    clipped += r.finish_reason == bridge::FinishReason::kLength ? 1.0 : 0.0;
    aborted += is_scored(r) ? 0.0 : 1.0;
    turns += static_cast<double>(std::max<std::size_t>(1, r.turn_offsets.size()));
  }
  const auto count = static_cast<double>(rollouts.size());
  metrics.emplace_back("num_tokens", tokens);
  metrics.emplace_back("completions/mean_length", share_of(completion_tokens, count));
  metrics.emplace_back("completions/min_length", shortest);
  metrics.emplace_back("completions/max_length", longest);
  metrics.emplace_back("completions/clipped_ratio", share_of(clipped, count));
  metrics.emplace_back("response/aborted_ratio", share_of(aborted, count));
  metrics.emplace_back("num_turns/mean", share_of(turns, count));
}

// Nothing where no routes were replayed.
Metrics route_metrics(const std::vector<UpdateResult>& updates) {
  double replayed = 0.0, changed = 0.0;
  for (const UpdateResult& update : updates) {
    replayed += update.routes.replayed;
    changed += update.routes.changed;
  }
  return replayed > 0.0 ? Metrics{{"router/changed_routes", changed / replayed}} : Metrics{};
}

// Nothing where no sets were recorded. Sizes are of the sets of loss tokens, bytes of all that came
// with the rollouts.
Metrics kept_set_metrics(std::span<const bridge::Rollout> rollouts, const TokenSets& sets) {
  if (!sets.any()) {
    return {};
  }
  double bytes = 0.0;
  for (const bridge::Rollout& rollout : rollouts) {
    const bridge::KeptSets& kept = rollout.kept_sets;
    bytes += static_cast<double>(sizeof(int32_t) * (kept.counts.size() + kept.ids.size()));
  }
  int64_t largest = 0;
  for (std::size_t token = 0; token + 1 < sets.begin.size(); ++token) {
    largest = std::max(largest, sets.begin[token + 1] - sets.begin[token]);
  }
  return {{"kept_sets/mean_size", share_of(static_cast<double>(sets.ids.size()),
                                           static_cast<double>(sets.begin.size() - 1))},
          {"kept_sets/max_size", static_cast<double>(largest)},
          {"kept_sets/bytes", bytes}};
}

}  // namespace

Metrics sequence_metrics(const std::vector<UpdateResult>& updates) {
  const auto mean = [&](double SequenceFigures::*figure) {
    return mean_over(updates, [&](const UpdateResult& u) { return u.sequence.*figure; });
  };
  Metrics metrics{{"sp/prefix_saving", mean(&SequenceFigures::prefix_saving)},
                  {"sp/pair_saving", mean(&SequenceFigures::pair_saving)},
                  {"sp/bytes_predicted", mean(&SequenceFigures::predicted_bytes)},
                  {"sp/bytes_sent", mean(&SequenceFigures::sent_bytes)},
                  {"sp/balance_tokens", mean(&SequenceFigures::balance_tokens)},
                  {"sp/balance_pairs", mean(&SequenceFigures::balance_pairs)}};
  if (!updates.empty() && updates.front().experts.present) {
    metrics.emplace_back("experts/load_max", mean_over(updates, [](const UpdateResult& u) {
                           return u.experts.load_max;
                         }));
    metrics.emplace_back("experts/unused", mean_over(updates, [](const UpdateResult& u) {
                           return u.experts.unused;
                         }));
    if (updates.front().experts.aux_loss) {
      metrics.emplace_back("experts/aux_loss", mean_over(updates, [](const UpdateResult& u) {
                             return u.experts.aux_loss.value_or(0.0);
                           }));
    }
  }
  return metrics;
}

std::optional<EvaluationResult> evaluation_of(const Metrics& metrics, const std::string& name) {
  const auto value = find_metric(metrics, name);
  return value ? std::optional(EvaluationResult{name, *value}) : std::nullopt;
}

Metrics update_metrics(const std::vector<UpdateResult>& updates) {
  const StepFigures figures = merged_figures(updates);
  Metrics metrics{
      {"loss", mean_over(updates, [](const UpdateResult& u) { return u.figures["loss"]; })},
      {"policy_loss",
       mean_over(updates, [](const UpdateResult& u) { return u.figures["policy_loss"]; })},
      {"kl", figures["kl"]},
      {"entropy", figures["entropy"]},
      {"grad_norm", mean_over(updates, [](const UpdateResult& u) { return u.grad_norm; })}};
  if (!updates.empty() && updates.front().further_loss) {
    metrics.emplace_back("mtp/loss", mean_over(updates, [](const UpdateResult& u) {
                           return u.further_loss.value_or(0.0);
                         }));
  }
  if (!updates.empty()) {
    metrics.emplace_back("learning_rate", updates.back().learning_rate);
  }
  if (!updates.empty() && updates.back().loss_scale > 0.0) {
    metrics.emplace_back("loss_scale", updates.back().loss_scale);
    metrics.emplace_back("skipped_steps",
                         std::count_if(updates.begin(), updates.end(),
                                       [](const UpdateResult& u) { return u.skipped; }));
  }
  return metrics;
}

Metrics rl_step_metrics(std::span<const bridge::Rollout> rollouts, const StepBatch& batch,
                        const StepAdvantages& advantages, const StepUpdates& updates,
                        const TrainingState& state, const Config& config) {
  const AlgorithmConfig& algorithm = config.algorithm;
  Metrics metrics = updates.policy.empty() ? Metrics{} : update_metrics(updates.policy);
  append_reward_metrics(metrics, rollouts, batch.rewards, advantages, config);
  append_advantage_metrics(metrics, advantages.advantage);
  if (!updates.policy.empty()) {
    const StepFigures figures = merged_figures(updates.policy);
    const double low = figures["clipped_low"], high = figures["clipped_high"];
    metrics.emplace_back("clip_ratio/low_mean", low);
    metrics.emplace_back("clip_ratio/high_mean", high);
    metrics.emplace_back("clip_ratio/region_mean", low + high);
    metrics.emplace_back("actor/ppo_kl", figures["old_kl"]);
    if (policy_loss(algorithm.loss).choose != nullptr) {
      metrics.emplace_back("clip_ratio/covariance", figures["chosen"]);
    }
    const auto of_pass = static_cast<std::size_t>(config.train.num_mini_batches * updates.policies);
    const StepFigures first_pass =
        merged_figures(std::span(updates.policy).first(std::min(updates.policy.size(), of_pass)));
    append_mismatch_metrics(metrics, first_pass);
    if (corrects_in_loss(algorithm.correction)) {
      append_current_weight_metrics(metrics, figures);
    } else {
      append_weight_metrics(metrics, updates.correction, first_pass);
    }
    if (has_teacher(algorithm)) {
      metrics.emplace_back("distillation/kl", first_pass["teacher_kl"]);
    }
    if (distils_distributions(algorithm)) {
      metrics.emplace_back("distillation/divergence", first_pass["divergence"]);
    }
    std::ranges::copy(route_metrics(updates.policy), std::back_inserter(metrics));
  }
  append_correction_metrics(metrics, updates.correction);
  if (algorithm.correction.opsm_delta > 0) {
    metrics.emplace_back("opsm_clipfrac", merged_figures(updates.policy)["opsm_masked"]);
  }
  if (algorithm.kl_coef > 0) {
    metrics.emplace_back("actor/kl_coef", updates.kl_coef);
  }
  if (algorithm.kl_coef > 0 && algorithm.kl_in != KlIn::kLoss) {
    metrics.emplace_back("critic/kl", advantages.kl);
  }
  if (algorithm.entropy_coef > 0 || algorithm.entropy_target > 0) {
    metrics.emplace_back("entropy_coef", state.entropy_coef);
  }
  if (!updates.critic.empty()) {
    const Metrics of_critic = critic_metrics(updates.critic);
    metrics.insert(metrics.end(), of_critic.begin(), of_critic.end());
  }
  std::ranges::copy(kept_set_metrics(rollouts, batch.columns.kept_sets),
                    std::back_inserter(metrics));
  append_completion_metrics(metrics, rollouts);
  append_staleness_metrics(metrics, rollouts, state.weight_version);
  return metrics;
}

}  // namespace ringside::rl
