// Loss dppo_tv: -A sg(min(r, dppo.ratio_bound)) logprob of tokens whose probability has risen by at
// most clip_high where A > 0, or fallen by at most clip_low elsewhere; 0 of the other tokens.
// Source: divergence PPO, as in verl, whose bound is clip_ratio_c, and prime-rl.
#include <ATen/ATen.h>

#include "rl/losses/policy_loss.h"

namespace ringside::rl {
namespace {

at::Tensor dppo_tv_term(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                        const AlgorithmConfig& config) {
  const at::Tensor ratio = log_ratio_n.exp();
  const at::Tensor moved = terms.logprob_n.detach().exp() - terms.old_n.exp();
  const at::Tensor too_far =
      at::where(terms.advantage_n > 0, moved > config.clip_high, moved < -config.clip_low);
  const at::Tensor weight = config.dppo.ratio_bound > 0
                                ? ratio.detach().clamp_max(config.dppo.ratio_bound)
                                : ratio.detach();
  return -terms.advantage_n * weight * terms.logprob_n *
         too_far.logical_not().to(ratio.scalar_type());
}

}  // namespace

const PolicyLoss kDppoTvLoss{PolicyLossName::kDppoTv, dppo_tv_term};

}  // namespace ringside::rl
