// The per-token terms of a policy loss as pure functions of tensors. What is summed over tokens, with which weights, is the
// caller's (loss_weights.h): every term here is one number a token. Differentiable towards logprob_n alone.
// Shapes: n = loss entries of this rank. r = exp(logprob - old), A = advantage.
#pragma once

#include <ATen/core/Tensor.h>

#include "rl/config/config.h"

namespace ringside::rl {

struct PolicyTerms {
  at::Tensor logprob_n;    // of the current policy; carries the gradient
  at::Tensor old_n;        // of the policy that r is taken against
  at::Tensor advantage_n;
};

// The loss of each token, [n]:
//   ppo_clip   max(-A min(r, delta), -A clip(r, 1 - clip_low, 1 + clip_high)), where A < 0 at most -A dual_clip
//              (Schulman et al. 2017; dual clip: Ye et al. 2020; delta: INTELLECT-2's two-sided clipping, as TRL)
//   cispo      -sg(clip(r)) A logprob, clipped to 1 - clip_low .. 1 + clip_high, or to clip_low .. clip_high
//              (MiniMax-M1 2025; relative as in verl and slime, absolute as in TRL)
//   sapo       -A sigmoid(tau (r - 1)) 4 / tau, tau by the sign of A (Qwen 2025, soft adaptive policy optimization)
//   dppo_tv    -A r of tokens whose probability has not moved beyond clip_high upwards where A > 0, or clip_low downwards
//              elsewhere; 0 of others (divergence PPO, as in verl and prime-rl)
//   reinforce  -A logprob (Williams 1992)
at::Tensor policy_objective(const PolicyTerms& terms, const AlgorithmConfig& config);

// The KL estimate of each token to a reference, [n], of d = logprob - reference (Schulman 2020):
//   k1 = d, abs = |d|, k2 = d^2 / 2, k3 = exp(-d) + d - 1
//   X_straight   value of X with k2's gradient, as verl's "X+"
//   k3_unbiased  k3 exp(logprob - old), whose gradient is that of the reverse KL (DeepSeek-V3.2; TRL's default)
at::Tensor kl_estimate(const at::Tensor& logprob_n, const at::Tensor& reference_n, const at::Tensor& old_n,
                       KlEstimator estimator);

}  // namespace ringside::rl
