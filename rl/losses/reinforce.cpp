// Loss reinforce: -A logprob.
// Source: Williams 1992.
#include <ATen/ATen.h>

#include "rl/losses/loss_inputs.h"

namespace ringside::rl {
namespace {

at::Tensor reinforce_term(const LossInputs& in) { return -in.advantage_n * in.logprob_n; }

}  // namespace

extern const PolicyLoss kReinforce{
    .name = "reinforce", .sentence = "log-prob, without a ratio", .term = reinforce_term};

}  // namespace ringside::rl
