#include "rl/algorithm/policy_objective.h"

#include <ATen/ATen.h>

#include <stdexcept>

namespace ringside::rl {
namespace {

at::Tensor ppo_clip(const PolicyTerms& terms, const AlgorithmConfig& config) {
  const at::Tensor& advantage = terms.advantage_n;
  const at::Tensor ratio = (terms.logprob_n - terms.old_n).exp();
  const at::Tensor clipped = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high);
  const at::Tensor bounded = config.delta > 0 ? ratio.clamp_max(config.delta) : ratio;
  const at::Tensor loss = at::maximum(-advantage * bounded, -advantage * clipped);
  if (config.dual_clip == 0) {
    return loss;
  }
  return at::where(advantage < 0, at::minimum(loss, -advantage * config.dual_clip), loss);
}

at::Tensor cispo(const PolicyTerms& terms, const AlgorithmConfig& config) {
  const bool relative = config.cispo_bounds == CispoBounds::kRelative;
  const at::Tensor weight = (terms.logprob_n.detach() - terms.old_n)
                                .exp()
                                .clamp(relative ? 1.0 - config.clip_low : config.clip_low,
                                       relative ? 1.0 + config.clip_high : config.clip_high);
  return -weight * terms.advantage_n * terms.logprob_n;
}

at::Tensor sapo(const PolicyTerms& terms, const AlgorithmConfig& config) {
  const at::Tensor ratio = (terms.logprob_n - terms.old_n).exp();
  const at::Tensor positive = terms.advantage_n > 0;
  const at::Tensor tau = at::where(positive, at::full_like(ratio, config.sapo_tau_positive).detach(),
                                   at::full_like(ratio, config.sapo_tau_negative).detach());
  return -terms.advantage_n * at::sigmoid(tau * (ratio - 1.0)) * 4.0 / tau;
}

at::Tensor dppo_tv(const PolicyTerms& terms, const AlgorithmConfig& config) {
  const at::Tensor moved = terms.logprob_n.detach().exp() - terms.old_n.exp();
  const at::Tensor too_far = at::where(terms.advantage_n > 0, moved > config.clip_high, moved < -config.clip_low);
  const at::Tensor ratio = (terms.logprob_n - terms.old_n).exp();
  return -terms.advantage_n * ratio * too_far.logical_not().to(ratio.scalar_type());
}

at::Tensor k3_of(const at::Tensor& difference) { return (-difference).exp() + difference - 1.0; }

}  // namespace

at::Tensor policy_objective(const PolicyTerms& terms, const AlgorithmConfig& config) {
  switch (config.loss) {
    case PolicyLossName::kPpoClip:
      return ppo_clip(terms, config);
    case PolicyLossName::kCispo:
      return cispo(terms, config);
    case PolicyLossName::kSapo:
      return sapo(terms, config);
    case PolicyLossName::kDppoTv:
      return dppo_tv(terms, config);
    case PolicyLossName::kReinforce:
      return -terms.advantage_n * terms.logprob_n;
  }
  throw std::invalid_argument("unknown algorithm.loss");
}

at::Tensor kl_estimate(const at::Tensor& logprob_n, const at::Tensor& reference_n, const at::Tensor& old_n,
                       KlEstimator estimator) {
  const at::Tensor difference = logprob_n - reference_n;
  // k2 minus its own value: adds a gradient and nothing else.
  const auto straight = [&](const at::Tensor& value) {
    const at::Tensor k2 = 0.5 * difference.square();
    return k2 - k2.detach() + value.detach();
  };
  switch (estimator) {
    case KlEstimator::kK1:
      return difference;
    case KlEstimator::kAbs:
      return difference.abs();
    case KlEstimator::kK2:
      return 0.5 * difference.square();
    case KlEstimator::kK3:
      return k3_of(difference);
    case KlEstimator::kK1Straight:
      return straight(difference);
    case KlEstimator::kAbsStraight:
      return straight(difference.abs());
    case KlEstimator::kK3Straight:
      return straight(k3_of(difference));
    case KlEstimator::kK3Unbiased:
      return k3_of(difference) * (logprob_n - old_n).exp();
  }
  throw std::invalid_argument("unknown algorithm.kl_estimator");
}

}  // namespace ringside::rl
