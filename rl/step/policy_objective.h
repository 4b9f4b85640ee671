// Per-token terms of the policy losses as pure functions of tensors. The caller sums the terms with
// the weights of loss_weights.h. Differentiable with respect to logprob_n only.
// Shapes: n = loss entries of this rank. Notation: A = advantage, r = exp(log ratio), sg = stop
// gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include "rl/config/config.h"
#include "rl/losses/loss_inputs.h"
#include "rl/losses/sequence_means.h"

namespace ringside::rl {

struct PolicyTerms {
  at::Tensor logprob_n;  // of the current policy; carries the gradient
  at::Tensor old_n;      // of the policy that the ratio is taken against
  at::Tensor advantage_n;
  at::Tensor chosen_n{};  // 1 for tokens that the loss treats apart, else 0; undefined = none
};

// The log ratio that the loss uses, [n], with gradient:
//   token      logprob - old, clamped to [-20, 20] as in verl, so that one outlier cannot overflow
//   sequence   the mean of the token log ratios over the sequence, in token form: value sg(mean),
//              gradient of logprob (GSPO, Zheng et al. 2025, eq. 14 to 17). If advantage and weight
//              are constant in a sequence, its gradient equals that of the sequence form.
// A loss may have a ratio of its own (gmpo).
// Collective over: the ranks that share the sequences, for level sequence and for gmpo.
at::Tensor policy_log_ratio(const PolicyTerms& terms, const AlgorithmConfig& config,
                            const SequenceMeans& sequences);

// The loss of each token, [n]: the term of policy_loss(config.loss), whose file has the formula.
// Collective over: as policy_log_ratio().
at::Tensor policy_objective(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                            const AlgorithmConfig& config, const SequenceMeans& sequences);

// The KL estimate of each token to a reference, [n], of d = logprob - reference (Schulman 2020):
//   k1 = d, abs = |d|, k2 = d^2 / 2, k3 = exp(-d) + d - 1
//   X_straight   value of X with k2's gradient, as verl's "X+"
//   k3_score     value of k3, gradient of k3 exp(logprob - sg(logprob)), as NeMo-RL
//   k3_unbiased  k3 r, whose gradient is that of the reverse KL (DeepSeek-V3.2; TRL's default).
//                With a per-sequence ratio the gradient through r is that of the sequence's mean
//                k3.
// config.k3_bound clamps k3 wherever it stands above, of d clamped to -20 .. 20 (verl; NeMo-RL).
// Then config.kl_bound clamps every estimate (OpenRLHF, AReaL). What is clamped has no gradient of
// its own: X_straight keeps k2's, k3_score and k3_unbiased keep that of their other factor. 0 = no
// bound.
// Collective over: the ranks that share the sequences, for k3_unbiased at importance_level
// sequence.
at::Tensor kl_estimate(const at::Tensor& logprob_n, const at::Tensor& reference_n,
                       const at::Tensor& log_ratio_n, const AlgorithmConfig& config,
                       const SequenceMeans& sequences);

}  // namespace ringside::rl
