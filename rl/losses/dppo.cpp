// Losses dppo_tv and dppo_kl: -A sg(min(r, dppo.ratio_bound)) logprob, but 0 of tokens that moved
// too far: with A > 0 up by more than clip_high, else down by more than clip_low.
//   dppo_tv  moved is the change of the token's probability. Source: divergence PPO, as in verl,
//            whose bound is clip_ratio_c, and prime-rl.
//   dppo_kl  moved is a KL of two outcomes, the token or any other: p (log p - log q) + (1 - p)
//            log((1 - p) / (1 - q)), p of the old and q of the current policy. Source: DPPO (arXiv
//            2602.04879), eq. 12 and 14; verl's dppo_kl, with its 1e-8 beside 1 - p and 1 - q.
#include <ATen/ATen.h>

#include <array>

#include "rl/losses/loss_inputs.h"

namespace ringside::rl {
namespace {

constexpr LossKey kDppoRatioBound{
    .name = "ratio_bound",
    .value = 0.0,
    .sentence = "the ratio that weighs a token is at most this (verl: 3); 0 = off",
    .low = 0};
constexpr std::array kDppoKeys = {kDppoRatioBound};

// too_far_n: whether the token moved too far.
at::Tensor dppo_loss(const LossInputs& in, const at::Tensor& too_far_n) {
  const double bound = in.options[kDppoRatioBound];
  const at::Tensor ratio = in.log_ratio_n.detach().exp();
  const at::Tensor weight = bound > 0 ? ratio.clamp_max(bound) : ratio;
  return -in.advantage_n * weight * in.logprob_n * too_far_n.logical_not().to(ratio.scalar_type());
}

at::Tensor dppo_tv_term(const LossInputs& in) {
  const at::Tensor moved = in.logprob_n.detach().exp() - in.old_n.exp();
  return dppo_loss(in, at::where(in.advantage_n > 0, moved > in.options.clip_high,
                                 moved < -in.options.clip_low));
}

at::Tensor dppo_kl_term(const LossInputs& in) {
  constexpr double kTiny = 1e-8;
  const at::Tensor logprob = in.logprob_n.detach();
  const at::Tensor old = in.old_n.exp(), now = logprob.exp();
  const at::Tensor kl =
      old * (in.old_n - logprob) + (1.0 - old) * ((1.0 - old + kTiny) / (1.0 - now + kTiny)).log();
  return dppo_loss(
      in, at::where(in.advantage_n > 0, at::logical_and(kl > in.options.clip_high, now > old),
                    at::logical_and(kl > in.options.clip_low, now < old)));
}

}  // namespace

extern const PolicyLoss kDppoTv{.name = "dppo_tv",
                                .sentence = "no loss on tokens whose probability moved too far",
                                .clip_low = "largest fall of a probability",
                                .clip_high = "largest rise of a probability",
                                .keys = kDppoKeys,
                                .shared_block = "dppo",
                                .term = dppo_tv_term};

extern const PolicyLoss kDppoKl{.name = "dppo_kl",
                                .sentence = "no loss on tokens that moved by more than a KL",
                                .clip_low = "largest KL where the probability fell",
                                .clip_high = "largest KL where the probability rose",
                                .keys = kDppoKeys,
                                .shared_block = "dppo",
                                .term = dppo_kl_term};

}  // namespace ringside::rl
