// Loss ppo_clip: max(-A min(r, delta), -A clip(r, 1 - clip_low, 1 + clip_high)), and for A < 0 at
// most -A dual_clip.
// Source: Schulman et al. 2017; dual clip: Ye et al. 2020; delta: two-sided clipping of
// INTELLECT-2, as in TRL.
#include <ATen/ATen.h>

#include <array>

#include "rl/losses/loss_inputs.h"

namespace ringside::rl {
namespace {

constexpr LossKey kPpoDualClip{.name = "dual_clip",
                               .value = 0.0,
                               .sentence = "if A < 0, the loss is at most -A x this; 0 = off",
                               .low = 0};
constexpr LossKey kPpoDelta{
    .name = "delta",
    .value = 0.0,
    .sentence = "upper bound of the unclipped ratio (two-sided clipping); 0 = off",
    .low = 0};
constexpr std::array kPpoClipKeys = {kPpoDualClip, kPpoDelta};

at::Tensor ppo_clip_term(const LossInputs& in) {
  const at::Tensor& advantage = in.advantage_n;
  const double dual_clip = in.options[kPpoDualClip], delta = in.options[kPpoDelta];
  const at::Tensor ratio = in.log_ratio_n.exp();
  const at::Tensor clipped = ratio.clamp(1.0 - in.options.clip_low, 1.0 + in.options.clip_high);
  const at::Tensor bounded = delta > 0 ? ratio.clamp_max(delta) : ratio;
  const at::Tensor loss = at::maximum(-advantage * bounded, -advantage * clipped);
  if (dual_clip == 0) {
    return loss;
  }
  return at::where(advantage < 0, at::minimum(loss, -advantage * dual_clip), loss);
}

std::optional<LossMistake> check_ppo_clip(const LossOptions& options) {
  const double dual_clip = options[kPpoDualClip];
  if (dual_clip == 0 || dual_clip > 1) {
    return std::nullopt;
  }
  return LossMistake{kPpoDualClip.name, ", which would clip every loss; expected above 1, or 0"};
}

}  // namespace

extern const PolicyLoss kPpoClip{.name = "ppo_clip",
                                 .sentence = "clipped ratio (PPO, GRPO)",
                                 .clip_low = kRatioClippedLow,
                                 .clip_high = kRatioClippedHigh,
                                 .keys = kPpoClipKeys,
                                 .takes_sequence_ratio = true,
                                 .term = ppo_clip_term,
                                 .check = check_ppo_clip};

}  // namespace ringside::rl
