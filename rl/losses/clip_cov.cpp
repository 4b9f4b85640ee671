// Loss clip_cov: max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), and 0 of the chosen tokens:
// clip_cov.ratio of a mini-batch's, rounded down, drawn by the seed from those whose covariance
// (covariance.h) is between lb and ub; all of these if they are fewer.
// Source: Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning, eq. 12; verl's
// clip_cov. verl chooses anew in each micro-batch, by the current policy's log-probs (equal to the
// old ones in a step's first optimizer step), and never draws a token that the clip holds, which
// has no gradient anyway.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "rl/losses/covariance.h"
#include "rl/losses/loss_inputs.h"

namespace ringside::rl {
namespace {

constexpr LossKey kClipCovRatio{
    .name = "ratio",
    .value = 2e-4,
    .sentence =
        "share of a mini-batch's tokens that have no loss, drawn from those whose "
        "covariance (A - mean A) (old log-prob - its mean) is between lb and ub",
    .low = 0,
    .high = 1};
constexpr LossKey kClipCovLb{
    .name = "lb", .value = 1.0, .sentence = "lower bound of that covariance, not included"};
constexpr LossKey kClipCovUb{
    .name = "ub", .value = 5.0, .sentence = "upper bound of that covariance, not included"};
constexpr std::array kClipCovKeys = {kClipCovRatio, kClipCovLb, kClipCovUb};

// SplitMix64 of a token's place: a random order that depends on nothing else.
uint64_t draw(uint64_t seed, uint64_t place) {
  uint64_t x = seed + (place + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::vector<double> choose_clip_cov(const ChoicePart& part, const LossOptions& options) {
  const auto covariance = token_covariances(part);
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < covariance.size(); ++i) {
    if (covariance[i] > options[kClipCovLb] && covariance[i] < options[kClipCovUb]) {
      candidates.push_back(i);
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [&](std::size_t a, std::size_t b) {
    return draw(part.seed, part.begin + a) < draw(part.seed, part.begin + b);
  });
  return choose_first(candidates, options[kClipCovRatio], covariance.size());
}

at::Tensor clip_cov_term(const LossInputs& in) {
  const at::Tensor& advantage = in.advantage_n;
  const at::Tensor ratio = in.log_ratio_n.exp();
  const at::Tensor clipped = ratio.clamp(1.0 - in.options.clip_low, 1.0 + in.options.clip_high);
  const at::Tensor loss = at::maximum(-advantage * ratio, -advantage * clipped);
  return in.chosen_n.defined() ? loss * (1.0 - in.chosen_n) : loss;
}

std::optional<LossMistake> check_clip_cov(const LossOptions& options) {
  if (options[kClipCovLb] < options[kClipCovUb]) {
    return std::nullopt;
  }
  return LossMistake{kClipCovLb.name,
                     ", not below algorithm.clip_cov.ub; expected a smaller number"};
}

}  // namespace

extern const PolicyLoss kClipCov{
    .name = "clip_cov",
    .sentence = "ppo_clip without tokens whose advantage and log-prob vary together most",
    .clip_low = kRatioClippedLow,
    .clip_high = kRatioClippedHigh,
    .keys = kClipCovKeys,
    .term = clip_cov_term,
    .choose = choose_clip_cov,
    .check = check_clip_cov};

}  // namespace ringside::rl
