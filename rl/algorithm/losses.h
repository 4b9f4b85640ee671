// The policy loss of GRPO per loss token, as pure functions of tensors, and the sums that its metrics are made of.
// Shapes: n = loss entries of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "rl/config/config.h"
#include "sp/collator/collator.h"

namespace ringside::rl {

// Sums over loss entries. Adding the sums of all micro-batches and ranks, then taking the maximum of the last group,
// gives those of the whole step.
struct LossSums {
  // weighted by the entries' weights: add up to the step's loss
  double loss = 0.0;
  double policy_loss = 0.0;
  // plain sums over tokens
  double tokens = 0.0;
  double kl = 0.0;
  double entropy = 0.0;
  double ratio_clipped_low = 0.0;   // A < 0 and ratio below 1 - clip_low
  double ratio_clipped_high = 0.0;  // A > 0 and ratio above 1 + clip_high
  double sampling_difference = 0.0;  // |current - rollout log-prob|
  double mult_prob_error = 0.0;      // exp |current - rollout log-prob|
  double rollout_kl = 0.0;           // rollout - current log-prob
  // maximum over tokens
  double sampling_difference_max = 0.0;

  std::vector<double> additive() const;
  static LossSums from(const std::vector<double>& additive, double sampling_difference_max);
  LossSums& operator+=(const LossSums& other);
};

struct PolicyLoss {
  at::Tensor loss;  // scalar: this rank's weighted sum, to be summed over ranks; differentiable
  LossSums sums;
};

// GRPO's loss (Shao et al. 2024): per token L = policy_objective + kl_coef * kl_estimate (policy_objective.h),
// and loss = sum of weight * L. logprob_n carries the gradient; entropy_n is for metrics. n may be 0: the loss is then a
// zero that still has a gradient path, so that a rank without tokens takes part in the backward's collectives.
PolicyLoss grpo_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n, const sp::Shard& shard,
                     const AlgorithmConfig& config);

// Negative log-likelihood: loss = -sum of weight * logprob.
PolicyLoss sft_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n, const sp::Shard& shard);

}  // namespace ringside::rl
