#include "rl/algorithm/losses.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>

#include "rl/algorithm/policy_objective.h"

namespace ringside::rl {
namespace {

double total(const at::Tensor& x) { return x.sum(at::kDouble).item<double>(); }

// Token statistics of both losses.
LossSums token_sums(const at::Tensor& logprob_n, const at::Tensor& entropy_n) {
  LossSums sums;
  sums.tokens = static_cast<double>(logprob_n.numel());
  sums.entropy = total(entropy_n);
  return sums;
}

// Mismatch of the trainer's log-probs and the rollout's, named as in TRL, verl and NeMo-RL.
void add_mismatch(LossSums& sums, const at::Tensor& logprob_n, const at::Tensor& rollout_n) {
  const at::Tensor log_rho = logprob_n - rollout_n;
  const at::Tensor rho = log_rho.exp();
  sums.sampling_difference = total(log_rho.abs());
  sums.mult_prob_error = total(log_rho.abs().exp());
  sums.rollout_kl = -total(log_rho);
  sums.rollout_k3 = total(rho - 1.0 - log_rho);
  sums.rho = total(rho);
  sums.rho_squared = total(rho.square());
  if (log_rho.numel() > 0) {
    sums.sampling_difference_max = log_rho.abs().max().item<double>();
  }
}

void add_policy_sums(LossSums& sums, const at::Tensor& log_ratio_n, const at::Tensor& logprob_n,
                     const EntryColumns& entries, const AlgorithmConfig& config) {
  const auto [low, high] = ratio_bounds(config);
  const at::Tensor ratio = log_ratio_n.exp();
  sums.ratio_clipped_low = total(at::logical_and(entries.advantage_n < 0, ratio < low));
  sums.ratio_clipped_high = total(at::logical_and(entries.advantage_n > 0, ratio > high));
  sums.old_kl = total(entries.old_logprob_n - logprob_n);
}

// 0 for tokens of sequences that correction.opsm_delta masks out, 1 for other tokens.
at::Tensor opsm_mask(const at::Tensor& logprob_n, const EntryColumns& entries,
                     const AlgorithmConfig& config, const SequenceMeans& sequences) {
  const at::Tensor drift = sequences.of({entries.rollout_logprob_n - logprob_n})[0];
  const at::Tensor left_out =
      at::logical_and(entries.advantage_n.lt(0), drift.gt(config.correction.opsm_delta));
  return left_out.logical_not().to(logprob_n.scalar_type());
}

constexpr double LossSums::*kAdditive[] = {
    &LossSums::loss,
    &LossSums::policy_loss,
    &LossSums::tokens,
    &LossSums::kl,
    &LossSums::entropy,
    &LossSums::ratio_clipped_low,
    &LossSums::ratio_clipped_high,
    &LossSums::old_kl,
    &LossSums::opsm_masked,
    &LossSums::sampling_difference,
    &LossSums::mult_prob_error,
    &LossSums::rollout_kl,
    &LossSums::rollout_k3,
    &LossSums::rho,
    &LossSums::rho_squared,
};

}  // namespace

std::vector<double> LossSums::additive() const {
  std::vector<double> values;
  for (const auto member : kAdditive) {
    values.push_back(this->*member);
  }
  return values;
}

LossSums LossSums::from(const std::vector<double>& additive, double sampling_difference_max) {
  LossSums sums;
  for (std::size_t i = 0; i < std::size(kAdditive); ++i) {
    sums.*kAdditive[i] = additive.at(i);
  }
  sums.sampling_difference_max = sampling_difference_max;
  return sums;
}

LossSums& LossSums::operator+=(const LossSums& other) {
  for (const auto member : kAdditive) {
    this->*member += other.*member;
  }
  sampling_difference_max = std::max(sampling_difference_max, other.sampling_difference_max);
  return *this;
}

PolicyLoss policy_gradient_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                                const EntryColumns& entries, const AlgorithmConfig& config,
                                const LossContext& context) {
  const SequenceMeans sequences(entries.sample_n, context.num_sequences, context.sequence);
  const PolicyTerms terms{logprob_n, entries.old_logprob_n, entries.advantage_n};
  const at::Tensor log_ratio = policy_log_ratio(terms, config, sequences);
  at::Tensor per_token = entries.correction_n * policy_objective(terms, log_ratio, config);
  LossSums sums = token_sums(logprob_n.detach(), entropy_n.detach());
  if (config.correction.opsm_delta > 0) {
    const at::Tensor mask = opsm_mask(logprob_n.detach(), entries, config, sequences);
    sums.opsm_masked = sums.tokens - total(mask);
    per_token = per_token * mask;
  }
  const at::Tensor policy_loss = (entries.weight_n * per_token).sum();
  PolicyLoss result{policy_loss, {}};
  if (config.kl_coef != 0.0 && config.kl_in == KlIn::kLoss) {
    const at::Tensor& other =
        config.kl_to == KlTo::kRollout ? entries.rollout_logprob_n : entries.reference_logprob_n;
    const at::Tensor kl = kl_estimate(logprob_n, other, log_ratio, config, sequences);
    result.loss = result.loss + context.kl_coef * (entries.weight_n * kl).sum();
    sums.kl = total(kl.detach());
  }
  if (context.entropy_coef != 0.0) {
    const auto tokens = static_cast<double>(std::max<int64_t>(1, context.loss_tokens));
    result.loss = result.loss - context.entropy_coef / tokens * entropy_n.sum();
  }
  add_policy_sums(sums, log_ratio.detach(), logprob_n.detach(), entries, config);
  add_mismatch(sums, logprob_n.detach(), entries.rollout_logprob_n);
  sums.policy_loss = total(policy_loss.detach());
  sums.loss = total(result.loss.detach());
  result.sums = sums;
  return result;
}

PolicyLoss sft_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                    const at::Tensor& weight_n) {
  PolicyLoss result{-(weight_n * logprob_n).sum(), {}};
  const at::NoGradGuard no_grad;
  result.sums = token_sums(logprob_n, entropy_n);
  result.sums.loss = total(result.loss);
  result.sums.policy_loss = result.sums.loss;
  return result;
}

}  // namespace ringside::rl
