// Loss sapo: -A sigmoid(tau (r - 1)) 4 / tau, tau by the sign of A. verl always takes the mean of
// samples' means with it (loss_aggregation seq_mean_token_mean).
// Source: Qwen 2025, soft adaptive policy optimization.
#include <ATen/ATen.h>

#include <array>

#include "rl/losses/loss_inputs.h"

namespace ringside::rl {
namespace {

constexpr LossKey kSapoTauPositive{.name = "tau_positive",
                                   .value = 1.0,
                                   .sentence = "temperature of the gate if A > 0",
                                   .low = 0,
                                   .above = true};
constexpr LossKey kSapoTauNegative{.name = "tau_negative",
                                   .value = 1.05,
                                   .sentence = "temperature of the gate otherwise",
                                   .low = 0,
                                   .above = true};
constexpr std::array kSapoKeys = {kSapoTauPositive, kSapoTauNegative};

at::Tensor sapo_term(const LossInputs& in) {
  const at::Tensor& advantage = in.advantage_n;
  const at::Tensor ratio = in.log_ratio_n.exp();
  const at::Tensor tau =
      at::where(advantage > 0, at::full_like(ratio, in.options[kSapoTauPositive]).detach(),
                at::full_like(ratio, in.options[kSapoTauNegative]).detach());
  return -advantage * at::sigmoid(tau * (ratio - 1.0)) * 4.0 / tau;
}

}  // namespace

extern const PolicyLoss kSapo{.name = "sapo",
                              .sentence = "soft gate of the ratio",
                              .keys = kSapoKeys,
                              .takes_sequence_ratio = true,
                              .term = sapo_term};

}  // namespace ringside::rl
