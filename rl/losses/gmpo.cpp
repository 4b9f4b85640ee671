// Loss gmpo: -A r with r of a sequence: the mean over its tokens of sign(A) min(sign(A) x, sign(A)
// clip(x, -clip_low, clip_high)), x the token's log ratio, in token form.
// Source: geometric-mean policy optimization, Zhao et al. 2025, as in verl.
#include <ATen/ATen.h>

#include "rl/losses/policy_loss.h"

namespace ringside::rl {
namespace {

// Clipped in the direction in which the advantage pushes.
at::Tensor gmpo_log_ratio(const PolicyTerms& terms, const at::Tensor& of_token_n,
                          const AlgorithmConfig& config, const SequenceMeans& sequences) {
  const at::Tensor sign = terms.advantage_n.sign();
  const at::Tensor bounded =
      sign *
      at::minimum(sign * of_token_n, sign * of_token_n.clamp(-config.clip_low, config.clip_high));
  return in_token_form(sequences.of({bounded})[0], bounded);
}

at::Tensor gmpo_term(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                     const AlgorithmConfig&) {
  return -terms.advantage_n * log_ratio_n.exp();
}

}  // namespace

const PolicyLoss kGmpoLoss{PolicyLossName::kGmpo, gmpo_term, gmpo_log_ratio};

}  // namespace ringside::rl
