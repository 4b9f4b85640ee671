// Per-token terms of the policy losses as pure functions of tensors. The caller sums the terms with
// the weights of loss_weights.h. Differentiable with respect to logprob_n only.
// Shapes: n = loss entries of this rank. Notation: A = advantage, r = exp(log ratio), sg = stop
// gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "rl/algorithm/sequence_means.h"
#include "rl/config/config.h"

namespace ringside::rl {

struct PolicyTerms {
  at::Tensor logprob_n;  // of the current policy; carries the gradient
  at::Tensor old_n;      // of the policy that the ratio is taken against
  at::Tensor advantage_n;
};

// The log ratio that the loss uses, [n], with gradient:
//   token      logprob - old, clamped to [-20, 20] as in verl, so that one outlier cannot overflow
//   sequence   the mean of the token log ratios over the sequence, in token form: value sg(mean),
//              gradient of logprob (GSPO, Zheng et al. 2025, eq. 14 to 17). If advantage and weight
//              are constant in a sequence, its gradient equals that of the sequence form.
//   loss gmpo  the mean over the sequence of sign(A) min(sign(A) x, sign(A) clip(x, -clip_low,
//              clip_high)) with x the token's log ratio, in token form (geometric-mean policy
//              optimization, Zhao et al. 2025, as in verl)
// Collective over: the ranks that share the sequences, for the last two.
at::Tensor policy_log_ratio(const PolicyTerms& terms, const AlgorithmConfig& config,
                            const SequenceMeans& sequences);

// The bounds (low, high) outside which the clip metrics count a ratio as clipped.
std::pair<double, double> ratio_bounds(const AlgorithmConfig& config);

// The loss of each token, [n]:
//   ppo_clip   max(-A min(r, delta), -A clip(r, 1 - clip_low, 1 + clip_high)), and for A < 0 at
//              most -A dual_clip (Schulman et al. 2017; dual clip: Ye et al. 2020; delta:
//              two-sided clipping of INTELLECT-2, as in TRL)
//   cispo      -sg(clip(r)) A logprob, clipped to 1 - clip_low .. 1 + clip_high (relative, as in
//              verl and slime) or to clip_low .. clip_high (absolute, as in TRL) (MiniMax-M1 2025)
//   sapo       -A sigmoid(tau (r - 1)) 4 / tau, tau by the sign of A
//              (Qwen 2025, soft adaptive policy optimization)
//   dppo_tv    -A sg(min(r, dppo_ratio_bound)) logprob of tokens whose probability has risen by at
//              most clip_high where A > 0, or fallen by at most clip_low elsewhere; 0 of the other
//              tokens (divergence PPO, as in verl, whose bound is clip_ratio_c, and prime-rl)
//   gmpo       -A r, with policy_log_ratio's r
//   reinforce  -A logprob (Williams 1992)
at::Tensor policy_objective(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                            const AlgorithmConfig& config);

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
