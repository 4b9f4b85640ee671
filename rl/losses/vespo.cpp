// Loss vespo: -A sg(phi(w)) logprob with phi(w) = e^lambda w^k e^(-lambda w), w the product of a
// sequence's ratios, its log within log(1e-8) .. 20; k and lambda by the sign of A, lambda at least
// 1e-4. A phi that is not finite is 0.
// Source: variational sequence-level soft policy optimization (arXiv 2602.10693), as in TRL, whose
// w also has the ratio of the trainer's to the server's log-probs.
#include <ATen/ATen.h>

#include <array>
#include <cmath>

#include "rl/losses/loss_inputs.h"

namespace ringside::rl {
namespace {

constexpr LossKey kVespoKPositive{.name = "k_positive",
                                  .value = 2.0,
                                  .sentence = "power of the sequence's ratio if A is at least 0",
                                  .low = 0};
constexpr LossKey kVespoLambdaPositive{
    .name = "lambda_positive",
    .value = 3.0,
    .sentence = "how fast the weight falls with the ratio if A is at least 0",
    .low = 0};
constexpr LossKey kVespoKNegative{
    .name = "k_negative", .value = 3.0, .sentence = "the power otherwise", .low = 0};
constexpr LossKey kVespoLambdaNegative{
    .name = "lambda_negative", .value = 2.0, .sentence = "how fast it falls otherwise", .low = 0};
constexpr std::array kVespoKeys = {kVespoKPositive, kVespoLambdaPositive, kVespoKNegative,
                                   kVespoLambdaNegative};

at::Tensor vespo_term(const LossInputs& in) {
  const double low = std::log(1e-8), high = 20.0;
  const at::Tensor log_w = in.sequences.sums_of({in.log_ratio_n.detach()})[0].clamp(low, high);
  const at::Tensor positive = in.advantage_n >= 0;
  const auto by_sign = [&](double of_positive, double of_negative) {
    return at::where(positive, at::full_like(log_w, of_positive),
                     at::full_like(log_w, of_negative));
  };
  const at::Tensor k = by_sign(in.options[kVespoKPositive], in.options[kVespoKNegative]);
  const at::Tensor lambda =
      by_sign(in.options[kVespoLambdaPositive], in.options[kVespoLambdaNegative]).clamp_min(1e-4);
  const at::Tensor phi =
      (lambda + k * log_w - lambda * log_w.exp()).exp().nan_to_num(0.0, 0.0, 0.0);
  return -phi * in.advantage_n * in.logprob_n;
}

}  // namespace

extern const PolicyLoss kVespo{
    .name = "vespo",
    .sentence = "log-prob weighed by a smooth function of a sequence's ratio",
    .keys = kVespoKeys,
    .term = vespo_term};

}  // namespace ringside::rl
