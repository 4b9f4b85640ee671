// Loss reinforce: -A logprob.
// Source: Williams 1992.
#include <ATen/ATen.h>

#include "rl/losses/policy_loss.h"

namespace ringside::rl {
namespace {

at::Tensor reinforce_term(const PolicyTerms& terms, const at::Tensor&, const AlgorithmConfig&) {
  return -terms.advantage_n * terms.logprob_n;
}

}  // namespace

const PolicyLoss kReinforceLoss{PolicyLossName::kReinforce, reinforce_term};

}  // namespace ringside::rl
