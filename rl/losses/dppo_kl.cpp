// Loss dppo_kl: -A sg(min(r, dppo.ratio_bound)) logprob, but 0 of tokens with A > 0 whose
// probability rose, and of others whose probability fell, by more than a KL of clip_high or
// clip_low. The KL is that of two outcomes, the token or any other: p (log p - log q) + (1 - p)
// log((1 - p) / (1 - q)), p of the old and q of the current policy. Source: DPPO (arXiv
// 2602.04879), eq. 12 and 14; verl's dppo_kl, with its 1e-8 beside 1 - p and 1 - q.
#include <ATen/ATen.h>

#include "rl/losses/policy_loss.h"

namespace ringside::rl {
namespace {

at::Tensor dppo_kl_term(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                        const AlgorithmConfig& config) {
  constexpr double kTiny = 1e-8;
  const at::Tensor logprob = terms.logprob_n.detach();
  const at::Tensor old = terms.old_n.exp(), now = logprob.exp();
  const at::Tensor kl = old * (terms.old_n - logprob) +
                        (1.0 - old) * ((1.0 - old + kTiny) / (1.0 - now + kTiny)).log();
  const at::Tensor too_far =
      at::where(terms.advantage_n > 0, at::logical_and(kl > config.clip_high, now > old),
                at::logical_and(kl > config.clip_low, now < old));
  const at::Tensor ratio = log_ratio_n.detach().exp();
  const at::Tensor weight =
      config.dppo.ratio_bound > 0 ? ratio.clamp_max(config.dppo.ratio_bound) : ratio;
  return -terms.advantage_n * weight * terms.logprob_n *
         too_far.logical_not().to(ratio.scalar_type());
}

}  // namespace

const PolicyLoss kDppoKlLoss{PolicyLossName::kDppoKl, dppo_kl_term};

}  // namespace ringside::rl
