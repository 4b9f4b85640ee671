// Loss sapo: -A sigmoid(tau (r - 1)) 4 / tau, tau by the sign of A. verl always takes the mean of
// samples' means with it (loss_aggregation seq_mean_token_mean).
// Source: Qwen 2025, soft adaptive policy optimization.
#include <ATen/ATen.h>

#include "rl/losses/policy_loss.h"

namespace ringside::rl {
namespace {

at::Tensor sapo_term(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                     const AlgorithmConfig& config) {
  const at::Tensor& advantage = terms.advantage_n;
  const at::Tensor ratio = log_ratio_n.exp();
  const at::Tensor tau =
      at::where(advantage > 0, at::full_like(ratio, config.sapo.tau_positive).detach(),
                at::full_like(ratio, config.sapo.tau_negative).detach());
  return -advantage * at::sigmoid(tau * (ratio - 1.0)) * 4.0 / tau;
}

}  // namespace

const PolicyLoss kSapoLoss{PolicyLossName::kSapo, sapo_term};

}  // namespace ringside::rl
