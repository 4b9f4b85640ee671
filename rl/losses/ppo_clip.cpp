// Loss ppo_clip: max(-A min(r, delta), -A clip(r, 1 - clip_low, 1 + clip_high)), and for A < 0 at
// most -A dual_clip.
// Source: Schulman et al. 2017; dual clip: Ye et al. 2020; delta: two-sided clipping of
// INTELLECT-2, as in TRL.
#include <ATen/ATen.h>

#include "rl/losses/policy_loss.h"

namespace ringside::rl {
namespace {

at::Tensor ppo_clip_term(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                         const AlgorithmConfig& config) {
  const at::Tensor& advantage = terms.advantage_n;
  const at::Tensor ratio = log_ratio_n.exp();
  const at::Tensor clipped = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high);
  const at::Tensor bounded =
      config.ppo_clip.delta > 0 ? ratio.clamp_max(config.ppo_clip.delta) : ratio;
  const at::Tensor loss = at::maximum(-advantage * bounded, -advantage * clipped);
  if (config.ppo_clip.dual_clip == 0) {
    return loss;
  }
  return at::where(advantage < 0, at::minimum(loss, -advantage * config.ppo_clip.dual_clip), loss);
}

}  // namespace

const PolicyLoss kPpoClipLoss{PolicyLossName::kPpoClip, ppo_clip_term};

}  // namespace ringside::rl
