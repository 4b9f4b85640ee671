// The policy loss per loss token, as pure functions of tensors, and the sums that its metrics are
// made of. Shapes: n = loss entries of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "rl/algorithm/entry_columns.h"
#include "rl/config/config.h"
#include "sp/mesh/communicator.h"

namespace ringside::rl {

// Sums over loss entries. Adding the sums of all micro-batches and ranks, then taking the maximum
// of the last group, gives those of the whole step.
struct LossSums {
  // weighted by the entries' weights: add up to the step's loss
  double loss = 0.0;
  double policy_loss = 0.0;
  // plain sums over tokens
  double tokens = 0.0;
  double kl = 0.0;
  double entropy = 0.0;
  double ratio_clipped_low = 0.0;   // A < 0 and ratio below its lower bound
  double ratio_clipped_high = 0.0;  // A > 0 and ratio above its upper bound
  double old_kl = 0.0;              // old - current log-prob
  double opsm_masked = 0.0;         // left out by correction.opsm_delta
  // of the rollout's log-probs against the current ones, rho = exp(current - rollout)
  double sampling_difference = 0.0;  // |current - rollout|
  double mult_prob_error = 0.0;      // exp |current - rollout|
  double rollout_kl = 0.0;           // rollout - current
  double rollout_k3 = 0.0;           // rho - 1 - log rho
  double rho = 0.0;
  double rho_squared = 0.0;
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

// What the loss needs beside the entries.
struct LossContext {
  double kl_coef = 0.0;       // the present value of an adaptive coefficient
  double entropy_coef = 0.0;  // 0 = no bonus
  int64_t loss_tokens = 1;    // of the whole mini-batch, over all ranks
  int64_t num_sequences = 1;  // entries' samples lie in [0, num_sequences)
  sp::Communicator* sequence =
      nullptr;  // of the ranks that share the sequences; nullptr = this rank alone
};

// The loss of a policy: per token L = correction * policy_objective + kl_coef * kl_estimate
// (policy_objective.h), the KL term only where it is in the loss, and loss = sum of weight * L -
// entropy_coef * mean entropy of all loss tokens. Sequences of A < 0 that have left the sampling
// policy too far behind lose their policy term (correction.opsm_delta; DeepSeek-V3.2 2025,
// section 3.1, off-policy sequence masking). logprob_n carries the gradient, and entropy_n when
// there is a bonus. n may be 0: the loss is then a zero that still has a gradient path, so that a
// rank without tokens takes part in the backward's collectives. Collective over context.sequence
// where the configuration asks for figures of sequences.
PolicyLoss policy_gradient_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                                const EntryColumns& entries, const AlgorithmConfig& config,
                                const LossContext& context);

// Negative log-likelihood: loss = -sum of weight * logprob.
PolicyLoss sft_loss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                    const at::Tensor& weight_n);

}  // namespace ringside::rl
