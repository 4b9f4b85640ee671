#include "rl/algorithm/losses.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>

#include "rl/algorithm/kl_estimators.h"
#include "rl/algorithm/policy_objective.h"

namespace ringside::rl {
namespace {

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

at::Tensor total(const at::Tensor& x) { return x.detach().sum(at::kDouble); }

// The figures of one loss while they are collected, by the field of LossSums that they fill.
class FigureTable {
 public:
  // Token statistics of every loss.
  FigureTable(const at::Tensor& logprob_n, const at::Tensor& entropy_n)
      : zero_(at::zeros({}, logprob_n.options().dtype(at::kDouble))),
        highest_(zero_),
        values_(std::size(kAdditive), zero_) {
    set(&LossSums::tokens, at::full_like(zero_, static_cast<double>(logprob_n.numel())));
    set(&LossSums::entropy, total(entropy_n));
  }

  void set(double LossSums::*field, const at::Tensor& value) {
    values_[std::find(std::begin(kAdditive), std::end(kAdditive), field) - std::begin(kAdditive)] =
        value;
  }
  void set_sampling_difference_max(const at::Tensor& value) { highest_ = value; }

  LossFigures figures() const { return {at::stack(values_), highest_}; }

 private:
  at::Tensor zero_;
  at::Tensor highest_;
  std::vector<at::Tensor> values_;
};

// Mismatch of the trainer's log-probs and the rollout's, named as in TRL, verl and NeMo-RL.
void add_mismatch(FigureTable& table, const at::Tensor& trainer_n, const at::Tensor& rollout_n) {
  const at::Tensor log_rho = trainer_n - rollout_n;
  const at::Tensor bounded = log_rho.clamp(-kMaxLogRatio, kMaxLogRatio);
  const at::Tensor rho = bounded.exp();
  const at::Tensor difference = log_rho.abs();
  table.set(&LossSums::sampling_difference, total(difference));
  table.set(&LossSums::mult_prob_error, total(bounded.abs().exp()));
  table.set(&LossSums::rollout_kl, -total(log_rho));
  table.set(&LossSums::rollout_k3, total(rho - 1.0 - bounded));
  table.set(&LossSums::rho, total(rho));
  table.set(&LossSums::rho_squared, total(rho.square()));
  if (log_rho.numel() > 0) {
    table.set_sampling_difference_max(difference.max().to(at::kDouble));
  }
}

void add_policy_sums(FigureTable& table, const at::Tensor& log_ratio_n, const at::Tensor& logprob_n,
                     const EntryColumns& entries, const AlgorithmConfig& config) {
  const auto [low, high] = ratio_bounds(config);
  const at::Tensor ratio = log_ratio_n.exp();
  table.set(&LossSums::ratio_clipped_low,
            total(at::logical_and(entries.advantage_n < 0, ratio < low)));
  table.set(&LossSums::ratio_clipped_high,
            total(at::logical_and(entries.advantage_n > 0, ratio > high)));
  table.set(&LossSums::old_kl, total(entries.old_logprob_n - logprob_n));
}

// 0 for tokens of sequences that correction.opsm_delta masks out, 1 for other tokens.
at::Tensor opsm_mask(const at::Tensor& logprob_n, const EntryColumns& entries,
                     const AlgorithmConfig& config, const SequenceMeans& sequences) {
  const at::Tensor drift = sequences.of({entries.rollout_logprob_n - logprob_n})[0];
  const at::Tensor left_out =
      at::logical_and(entries.advantage_n.lt(0), drift.gt(config.correction.opsm_delta));
  return left_out.logical_not().to(logprob_n.scalar_type());
}

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

LossSums LossFigures::fetch() const {
  const at::Tensor host = at::cat({additive_k, sampling_difference_max.view({1})}).to(at::kCPU);
  const double* values = host.const_data_ptr<double>();
  return LossSums::from({values, values + std::size(kAdditive)}, values[std::size(kAdditive)]);
}

PolicyLoss policy_gradient_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                                const EntryColumns& entries, const AlgorithmConfig& config,
                                const LossContext& context) {
  const SequenceMeans sequences(entries.sample_n, context.num_sequences, context.sequence);
  const PolicyTerms terms{logprob_n, entries.old_logprob_n, entries.advantage_n};
  const at::Tensor log_ratio = policy_log_ratio(terms, config, sequences);
  at::Tensor per_token = entries.correction_n * policy_objective(terms, log_ratio, config);
  FigureTable table(logprob_n, entropy_n);
  if (config.correction.opsm_delta > 0) {
    const at::Tensor mask = opsm_mask(logprob_n.detach(), entries, config, sequences);
    table.set(&LossSums::opsm_masked, static_cast<double>(mask.numel()) - total(mask));
    per_token = per_token * mask;
  }
  const at::Tensor policy_loss = (entries.weight_n * per_token).sum();
  PolicyLoss result{policy_loss, {}};
  if (config.kl_coef != 0.0 && config.kl_in == KlIn::kLoss) {
    const at::Tensor& other =
        config.kl_to == KlTo::kRollout ? entries.rollout_logprob_n : entries.reference_logprob_n;
    const at::Tensor kl = kl_estimate(logprob_n, other, log_ratio, config, sequences);
    result.loss = result.loss + context.kl_coef * (entries.weight_n * kl).sum();
    table.set(&LossSums::kl, total(kl));
  }
  if (context.entropy_coef != 0.0) {
    const auto tokens = static_cast<double>(std::max<int64_t>(1, context.loss_tokens));
    result.loss = config.entropy_aggregation == EntropyAggregation::kLoss
                      ? result.loss - context.entropy_coef * (entries.weight_n * entropy_n).sum()
                      : result.loss - context.entropy_coef / tokens * entropy_n.sum();
  }
  add_policy_sums(table, log_ratio.detach(), logprob_n.detach(), entries, config);
  const bool old_is_trainer = config.old_logprobs == OldLogprobs::kRecompute;
  add_mismatch(table, old_is_trainer ? entries.old_logprob_n : logprob_n.detach(),
               entries.rollout_logprob_n);
  table.set(&LossSums::policy_loss, total(policy_loss));
  table.set(&LossSums::loss, total(result.loss));
  result.figures = table.figures();
  return result;
}

PolicyLoss sft_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                    const at::Tensor& weight_n) {
  PolicyLoss result{-(weight_n * logprob_n).sum(), {}};
  FigureTable table(logprob_n, entropy_n);
  table.set(&LossSums::loss, total(result.loss));
  table.set(&LossSums::policy_loss, total(result.loss));
  result.figures = table.figures();
  return result;
}

}  // namespace ringside::rl
