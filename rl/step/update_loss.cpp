#include "rl/step/update_loss.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "rl/algorithm/correction.h"
#include "rl/algorithm/kl_estimators.h"
#include "rl/step/current_correction.h"
#include "rl/step/policy_objective.h"

namespace ringside::rl {
namespace {

// Mismatch of the trainer's log-probs and the rollout's, named as in TRL, verl and NeMo-RL.
void add_mismatch(Figures& figures, const at::Tensor& trainer_n, const at::Tensor& rollout_n) {
  const at::Tensor log_rho = trainer_n - rollout_n;
  const at::Tensor bounded = log_rho.clamp(-kMaxLogRatio, kMaxLogRatio);
  const at::Tensor rho = bounded.exp();
  const at::Tensor difference = log_rho.abs();
  figures.mean("sampling_difference", difference);
  figures.mean("mult_prob_error", bounded.abs().exp());
  figures.mean("rollout_kl", -log_rho);
  figures.mean("rollout_k3", rho - 1.0 - bounded);
  figures.mean("rho", rho);
  figures.mean("rho_squared", rho.square());
  figures.max("sampling_difference_max", difference);
}

void add_ratios(Figures& figures, const at::Tensor& log_ratio_n, const at::Tensor& logprob_n,
                const at::Tensor& old_n, const engine::Columns& entries,
                const AlgorithmConfig& config) {
  const auto [low, high] = ratio_bounds(policy_loss(config.loss), loss_options(config));
  const at::Tensor ratio = log_ratio_n.exp();
  figures.mean("clipped_low", at::logical_and(entries["advantage"] < 0, ratio < low));
  figures.mean("clipped_high", at::logical_and(entries["advantage"] > 0, ratio > high));
  figures.mean("old_kl", old_n - logprob_n);
}

// Tokens of sequences that correction.opsm_delta masks out.
at::Tensor left_out_by_opsm(const at::Tensor& logprob_n, const engine::Columns& entries,
                            const AlgorithmConfig& config, const SequenceMeans& sequences) {
  const at::Tensor drift = sequences.of({entries["rollout_logprob"] - logprob_n})[0];
  return at::logical_and(entries["advantage"].lt(0), drift.gt(config.correction.opsm_delta));
}

// The factor of the policy term: the column, or with ratio_of current that of the current policy.
at::Tensor correction_of(const at::Tensor& logprob_n, const engine::Columns& entries,
                         const CorrectionConfig& config, const SequenceMeans& sequences,
                         Figures& figures) {
  if (!corrects_in_loss(config)) {
    return entries["correction"];
  }
  const CurrentCorrection now =
      current_correction(logprob_n, entries["rollout_logprob"], config, sequences);
  figures.mean("current_weight", now.weight_n);
  figures.mean("current_weight_squared", now.weight_n.square());
  figures.mean("current_rejected", now.weight_n.eq(0));
  return now.weight_n;
}

// The sum that the bonus multiplies.
at::Tensor entropy_of(const at::Tensor& entropy_n, const engine::Columns& entries,
                      const AlgorithmConfig& config) {
  if (config.entropy_aggregation == EntropyAggregation::kLoss) {
    return (entries["weight"] * entropy_n).sum();
  }
  return config.correction.drop_rejected ? (entries["weight"].ne(0) * entropy_n).sum()
                                         : entropy_n.sum();
}

}  // namespace

at::Tensor policy_gradient_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                                const engine::Columns& entries, const AlgorithmConfig& config,
                                const LossContext& context, Figures& figures,
                                const at::Tensor& whole_logprob_n) {
  const SequenceMeans sequences(entries["sample"], context.num_sequences, context.sequence);
  const at::Tensor old = entries.has("old_logprob") ? entries["old_logprob"] : logprob_n.detach();
  const at::Tensor chosen = entries.has("chosen") ? entries["chosen"] : at::Tensor();
  const PolicyTerms terms{logprob_n, old, entries["advantage"], chosen};
  const at::Tensor log_ratio = policy_log_ratio(terms, config, sequences);
  at::Tensor per_token = correction_of(logprob_n, entries, config.correction, sequences, figures) *
                         policy_objective(terms, log_ratio, config, sequences);
  if (config.correction.opsm_delta > 0) {
    const at::Tensor left_out = left_out_by_opsm(logprob_n.detach(), entries, config, sequences);
    figures.mean("opsm_masked", left_out);
    per_token = per_token * left_out.logical_not().to(logprob_n.scalar_type());
  }
  const at::Tensor policy_loss = (entries["weight"] * per_token).sum();
  at::Tensor loss = policy_loss;
  if (config.kl_coef != 0.0 && config.kl_in == KlIn::kLoss) {
    const bool to_rollout = config.kl_to == KlTo::kRollout;
    const at::Tensor& other = entries[to_rollout ? "rollout_logprob" : "reference_logprob"];
    const at::Tensor& own = whole_logprob_n.defined() && !to_rollout ? whole_logprob_n : logprob_n;
    const at::Tensor kl = kl_estimate(own, other, log_ratio, config, sequences);
    loss = loss + context.kl_coef * (entries["weight"] * kl).sum();
    figures.mean("kl", kl);
  }
  if (context.entropy_coef != 0.0) {
    const auto tokens = static_cast<double>(std::max<int64_t>(1, context.loss_tokens));
    const double divisor = config.entropy_aggregation == EntropyAggregation::kLoss ? 1.0 : tokens;
    loss = loss - context.entropy_coef / divisor * entropy_of(entropy_n, entries, config);
  }
  if (chosen.defined()) {
    figures.mean("chosen", chosen);
  }
  if (entries.has("teacher_logprob")) {
    figures.mean("teacher_kl", logprob_n.detach() - entries["teacher_logprob"]);
  }
  figures.count(logprob_n);
  figures.mean("entropy", entropy_n);
  add_ratios(figures, log_ratio.detach(), logprob_n.detach(), old, entries, config);
  const bool old_is_trainer = config.old_logprobs == OldLogprobs::kRecompute;
  add_mismatch(figures, old_is_trainer ? old : logprob_n.detach(), entries["rollout_logprob"]);
  figures.sum("policy_loss", policy_loss);
  figures.sum("loss", loss);
  return loss;
}

at::Tensor sft_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                    const at::Tensor& weight_n, Figures& figures) {
  const at::Tensor loss = -(weight_n * logprob_n).sum();
  figures.count(logprob_n);
  figures.mean("entropy", entropy_n);
  figures.sum("loss", loss);
  figures.sum("policy_loss", loss);
  return loss;
}

}  // namespace ringside::rl
