// Loss dro: -A logprob + beta / 2 (logprob - old)^2; no ratio and nothing clipped.
// Source: Richemond et al. 2024, Offline Regularised Reinforcement Learning, for the log-probs of
// the policy that sampled as the old ones (old_logprobs rollout); verl's dro.
#include <ATen/ATen.h>

#include <array>

#include "rl/losses/loss_inputs.h"

namespace ringside::rl {
namespace {

constexpr LossKey kDroBeta{.name = "beta",
                           .value = 0.1,
                           .sentence = "weight of the squared log-ratio to the old policy",
                           .low = 0,
                           .above = true};
constexpr std::array kDroKeys = {kDroBeta};

at::Tensor dro_term(const LossInputs& in) {
  return -in.advantage_n * in.logprob_n +
         0.5 * in.options[kDroBeta] * (in.logprob_n - in.old_n).square();
}

}  // namespace

extern const PolicyLoss kDro{
    .name = "dro",
    .sentence = "log-prob, without a ratio, and a squared distance to the old policy's",
    .keys = kDroKeys,
    .term = dro_term};

}  // namespace ringside::rl
