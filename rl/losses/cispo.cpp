// Loss cispo: -sg(clip(r)) A logprob, clipped to 1 - clip_low .. 1 + clip_high (cispo.bounds
// relative, as in verl and slime) or to clip_low .. clip_high (absolute, as in TRL).
// Source: MiniMax-M1 2025.
#include <ATen/ATen.h>

#include "rl/losses/policy_loss.h"

namespace ringside::rl {
namespace {

at::Tensor cispo_term(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                      const AlgorithmConfig& config) {
  const auto [low, high] = ratio_bounds(config);
  return -log_ratio_n.exp().detach().clamp(low, high) * terms.advantage_n * terms.logprob_n;
}

}  // namespace

const PolicyLoss kCispoLoss{PolicyLossName::kCispo, cispo_term};

}  // namespace ringside::rl
