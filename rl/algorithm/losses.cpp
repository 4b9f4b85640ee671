#include "rl/algorithm/losses.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "rl/algorithm/policy_objective.h"

namespace ringside::rl {
namespace {

double total(const at::Tensor& x) { return x.sum(at::kDouble).item<double>(); }

// What both losses report of the tokens.
LossSums token_sums(const at::Tensor& logprob_n, const at::Tensor& entropy_n) {
  LossSums sums;
  sums.tokens = static_cast<double>(logprob_n.numel());
  sums.entropy = total(entropy_n);
  return sums;
}

// How far the trainer's log-probs are from those the rollout was sampled with; named as TRL, verl and NeMo-RL do.
void add_mismatch(LossSums& sums, const at::Tensor& logprob_n, const at::Tensor& rollout_n) {
  const at::Tensor difference = (logprob_n - rollout_n).abs();
  sums.sampling_difference = total(difference);
  sums.mult_prob_error = total(difference.exp());
  sums.rollout_kl = total(rollout_n - logprob_n);
  if (difference.numel() > 0) {
    sums.sampling_difference_max = difference.max().item<double>();
  }
}

}  // namespace

std::vector<double> LossSums::additive() const {
  return {loss, policy_loss, tokens, kl, entropy, ratio_clipped_low, ratio_clipped_high,
          sampling_difference, mult_prob_error, rollout_kl};
}

LossSums LossSums::from(const std::vector<double>& a, double sampling_difference_max) {
  return {a.at(0), a.at(1), a.at(2), a.at(3), a.at(4), a.at(5), a.at(6), a.at(7), a.at(8), a.at(9),
          sampling_difference_max};
}

LossSums& LossSums::operator+=(const LossSums& other) {
  auto sum = additive();
  const auto theirs = other.additive();
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] += theirs[i];
  }
  return *this = from(sum, std::max(sampling_difference_max, other.sampling_difference_max));
}

PolicyLoss grpo_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n, const sp::Shard& shard,
                     const AlgorithmConfig& config) {
  const at::Tensor& advantage = shard.advantage_n;
  const at::Tensor ratio = (logprob_n.detach() - shard.old_logprob_n).exp();
  const at::Tensor per_token = policy_objective({logprob_n, shard.old_logprob_n, advantage}, config);
  const at::Tensor policy_loss = (shard.weight_n * per_token).sum();
  PolicyLoss result{policy_loss, {}};
  {
    const at::NoGradGuard no_grad;
    result.sums = token_sums(logprob_n, entropy_n);
    result.sums.policy_loss = total(policy_loss);
    result.sums.ratio_clipped_low =
        total(at::logical_and(advantage < 0, ratio < 1.0 - config.clip_low));
    result.sums.ratio_clipped_high =
        total(at::logical_and(advantage > 0, ratio > 1.0 + config.clip_high));
    add_mismatch(result.sums, logprob_n, shard.rollout_logprob_n);
  }
  if (config.kl_coef != 0.0) {
    const at::Tensor kl =
        kl_estimate(logprob_n, shard.reference_logprob_n, shard.old_logprob_n, config.kl_estimator);
    result.loss = policy_loss + config.kl_coef * (shard.weight_n * kl).sum();
    result.sums.kl = total(kl.detach());
  }
  result.sums.loss = total(result.loss.detach());
  return result;
}

PolicyLoss sft_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n, const sp::Shard& shard) {
  PolicyLoss result{-(shard.weight_n * logprob_n).sum(), {}};
  const at::NoGradGuard no_grad;
  result.sums = token_sums(logprob_n, entropy_n);
  result.sums.loss = total(result.loss);
  result.sums.policy_loss = result.sums.loss;
  return result;
}

}  // namespace ringside::rl
