// The per-token terms of a policy loss as pure functions of tensors. What is summed over tokens,
// with which weights, is the caller's (loss_weights.h): every term here is one number a token.
// Differentiable towards logprob_n alone. Shapes: n = loss entries of this rank. A = advantage, r =
// exp(log ratio).
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

// The logarithm of the ratio that the loss sees, [n], with gradient:
//   token      logprob - old, kept within -20 and 20 as verl does, so that one wild token cannot
//   overflow sequence   the mean of that over the sequence, in token form: value sg(mean), gradient
//   of logprob (GSPO, Zheng et al.
//              2025, eq. 14 to 17). With one advantage and one weight a sequence its gradient is
//              the sequence form's.
//   loss gmpo  the mean over the sequence of sign(A) min(sign(A) x, sign(A) clip(x, -clip_low,
//   clip_high)) with x the token's
//              log ratio, in token form (geometric-mean policy optimization, Zhao et al. 2025, as
//              in verl)
// Collective over the sequences' ranks for the last two.
at::Tensor policy_log_ratio(const PolicyTerms& terms, const AlgorithmConfig& config,
                            const SequenceMeans& sequences);

// The bounds outside which the clip metrics count a ratio as clipped: low, high.
std::pair<double, double> ratio_bounds(const AlgorithmConfig& config);

// The loss of each token, [n]:
//   ppo_clip   max(-A min(r, delta), -A clip(r, 1 - clip_low, 1 + clip_high)), where A < 0 at most
//   -A dual_clip
//              (Schulman et al. 2017; dual clip: Ye et al. 2020; delta: INTELLECT-2's two-sided
//              clipping, as TRL)
//   cispo      -sg(clip(r)) A logprob, clipped to 1 - clip_low .. 1 + clip_high, or to clip_low ..
//   clip_high
//              (MiniMax-M1 2025; relative as in verl and slime, absolute as in TRL)
//   sapo       -A sigmoid(tau (r - 1)) 4 / tau, tau by the sign of A (Qwen 2025, soft adaptive
//   policy optimization) dppo_tv    -A r of tokens whose probability has not moved beyond clip_high
//   upwards where A > 0, or clip_low downwards
//              elsewhere; 0 of others (divergence PPO, as in verl and prime-rl)
//   gmpo       -A r, with policy_log_ratio's r
//   reinforce  -A logprob (Williams 1992)
at::Tensor policy_objective(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                            const AlgorithmConfig& config);

// The KL estimate of each token to a reference, [n], of d = logprob - reference (Schulman 2020):
//   k1 = d, abs = |d|, k2 = d^2 / 2, k3 = exp(-d) + d - 1
//   X_straight   value of X with k2's gradient, as verl's "X+"
//   k3_score     value of k3, gradient of k3 exp(logprob - sg(logprob)), as NeMo-RL
//   k3_unbiased  k3 r, whose gradient is that of the reverse KL (DeepSeek-V3.2; TRL's default);
//   with a ratio of the whole
//                sequence the gradient through r is that of the sequence's mean k3
// Collective over the sequences' ranks for k3_unbiased at importance_level sequence.
at::Tensor kl_estimate(const at::Tensor& logprob_n, const at::Tensor& reference_n,
                       const at::Tensor& log_ratio_n, const AlgorithmConfig& config,
                       const SequenceMeans& sequences);

}  // namespace ringside::rl
