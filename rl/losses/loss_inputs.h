// Inputs of a policy loss's term.
// Shapes: n = loss entries of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include "rl/losses/policy_loss.h"
#include "rl/losses/sequence_means.h"

namespace ringside::rl {

struct LossInputs {
  at::Tensor logprob_n;  // of the current policy; carries the gradient
  at::Tensor old_n;      // of the policy that the ratio is taken against
  at::Tensor advantage_n;
  at::Tensor chosen_n;     // 1 for tokens that the loss treats apart, else 0; undefined = none
  at::Tensor log_ratio_n;  // of the probability ratio, with gradient
  const SequenceMeans& sequences;
  const LossOptions& options;
};

}  // namespace ringside::rl
