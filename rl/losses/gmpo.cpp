// Loss gmpo: -A r with r of a sequence: the mean over its tokens of sign(A) min(sign(A) x, sign(A)
// clip(x, -clip_low, clip_high)), x the token's log ratio, in token form.
// Source: geometric-mean policy optimization, Zhao et al. 2025, as in verl.
#include <ATen/ATen.h>

#include "rl/losses/loss_inputs.h"

namespace ringside::rl {
namespace {

// Clipped in the direction in which the advantage pushes.
at::Tensor gmpo_log_ratio(const LossInputs& in) {
  const at::Tensor sign = in.advantage_n.sign();
  const at::Tensor& of_token = in.log_ratio_n;
  const at::Tensor clipped = of_token.clamp(-in.options.clip_low, in.options.clip_high);
  const at::Tensor bounded = sign * at::minimum(sign * of_token, sign * clipped);
  return in_token_form(in.sequences.of({bounded})[0], bounded);
}

at::Tensor gmpo_term(const LossInputs& in) { return -in.advantage_n * in.log_ratio_n.exp(); }

}  // namespace

extern const PolicyLoss kGmpo{.name = "gmpo",
                              .sentence = "geometric mean of a sequence's clipped ratios",
                              .clip_low = "the log-ratio is clipped below -clip_low",
                              .clip_high = "the log-ratio is clipped above clip_high",
                              .term = gmpo_term,
                              .own_log_ratio = gmpo_log_ratio};

}  // namespace ringside::rl
