// Loss clip_cov: max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), and 0 of the chosen tokens
// (covariance_choice.h).
// Source: Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning, eq. 12; verl's
// clip_cov.
#include <ATen/ATen.h>

#include "rl/losses/policy_loss.h"

namespace ringside::rl {
namespace {

at::Tensor clip_cov_term(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                         const AlgorithmConfig& config) {
  const at::Tensor& advantage = terms.advantage_n;
  const at::Tensor ratio = log_ratio_n.exp();
  const at::Tensor clipped = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high);
  const at::Tensor loss = at::maximum(-advantage * ratio, -advantage * clipped);
  return terms.chosen_n.defined() ? loss * (1.0 - terms.chosen_n) : loss;
}

}  // namespace

const PolicyLoss kClipCovLoss{PolicyLossName::kClipCov, clip_cov_term};

}  // namespace ringside::rl
