// Loss cispo: -sg(clip(r)) A logprob, clipped to 1 - clip_low .. 1 + clip_high (cispo.bounds
// relative, as in verl and slime) or to clip_low .. clip_high (absolute, as in TRL).
// Source: MiniMax-M1 2025.
#include <ATen/ATen.h>

#include <array>

#include "rl/losses/loss_inputs.h"

namespace ringside::rl {
namespace {

constexpr std::array<std::string_view, 2> kCispoWords = {"relative", "absolute"};
constexpr LossKey kCispoBounds{.name = "bounds",
                               .sentence =
                                   "of the ratio: relative = 1 - clip_low to 1 + clip_high, "
                                   "absolute = clip_low to clip_high",
                               .words = kCispoWords};
constexpr std::array kCispoKeys = {kCispoBounds};

std::pair<double, double> cispo_range(const LossOptions& options) {
  const bool absolute = options[kCispoBounds] == 1.0;
  return absolute ? std::pair{options.clip_low, options.clip_high}
                  : std::pair{1.0 - options.clip_low, 1.0 + options.clip_high};
}

at::Tensor cispo_term(const LossInputs& in) {
  const auto [low, high] = cispo_range(in.options);
  return -in.log_ratio_n.exp().detach().clamp(low, high) * in.advantage_n * in.logprob_n;
}

}  // namespace

extern const PolicyLoss kCispo{.name = "cispo",
                               .sentence = "log-prob weighed by the clipped ratio",
                               .clip_low = kRatioClippedLow,
                               .clip_high = kRatioClippedHigh,
                               .keys = kCispoKeys,
                               .takes_sequence_ratio = true,
                               .term = cispo_term,
                               .clip_range = cispo_range};

}  // namespace ringside::rl
