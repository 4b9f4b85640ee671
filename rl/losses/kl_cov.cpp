// Loss kl_cov: -A r, and of the chosen tokens (covariance_choice.h) -A r + kl_cov.kl_coef |log r|;
// no ratio is clipped. Source: Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning,
// eq. 14; verl's kl_cov.
#include <ATen/ATen.h>

#include "rl/losses/policy_loss.h"

namespace ringside::rl {
namespace {

at::Tensor kl_cov_term(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                       const AlgorithmConfig& config) {
  const at::Tensor loss = -terms.advantage_n * log_ratio_n.exp();
  return terms.chosen_n.defined()
             ? loss + config.kl_cov.kl_coef * terms.chosen_n * log_ratio_n.abs()
             : loss;
}

}  // namespace

const PolicyLoss kKlCovLoss{PolicyLossName::kKlCov, kl_cov_term};

}  // namespace ringside::rl
