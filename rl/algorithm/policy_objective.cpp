#include "rl/algorithm/policy_objective.h"

#include <ATen/ATen.h>

#include <stdexcept>

#include "rl/algorithm/kl_estimators.h"

namespace ringside::rl {
namespace {

// Value of `mean_n`, gradient of `token_n`.
at::Tensor in_token_form(const at::Tensor& mean_n, const at::Tensor& token_n) {
  return mean_n + token_n - token_n.detach();
}

at::Tensor ppo_clip(const at::Tensor& advantage, const at::Tensor& ratio,
                    const AlgorithmConfig& config) {
  const at::Tensor clipped = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high);
  const at::Tensor bounded = config.delta > 0 ? ratio.clamp_max(config.delta) : ratio;
  const at::Tensor loss = at::maximum(-advantage * bounded, -advantage * clipped);
  if (config.dual_clip == 0) {
    return loss;
  }
  return at::where(advantage < 0, at::minimum(loss, -advantage * config.dual_clip), loss);
}

at::Tensor cispo(const PolicyTerms& terms, const at::Tensor& ratio, const AlgorithmConfig& config) {
  const auto [low, high] = ratio_bounds(config);
  return -ratio.detach().clamp(low, high) * terms.advantage_n * terms.logprob_n;
}

at::Tensor sapo(const at::Tensor& advantage, const at::Tensor& ratio,
                const AlgorithmConfig& config) {
  const at::Tensor tau =
      at::where(advantage > 0, at::full_like(ratio, config.sapo_tau_positive).detach(),
                at::full_like(ratio, config.sapo_tau_negative).detach());
  return -advantage * at::sigmoid(tau * (ratio - 1.0)) * 4.0 / tau;
}

at::Tensor dppo_tv(const PolicyTerms& terms, const at::Tensor& ratio,
                   const AlgorithmConfig& config) {
  const at::Tensor moved = terms.logprob_n.detach().exp() - terms.old_n.exp();
  const at::Tensor too_far =
      at::where(terms.advantage_n > 0, moved > config.clip_high, moved < -config.clip_low);
  const at::Tensor weight = config.dppo_ratio_bound > 0
                                ? ratio.detach().clamp_max(config.dppo_ratio_bound)
                                : ratio.detach();
  return -terms.advantage_n * weight * terms.logprob_n *
         too_far.logical_not().to(ratio.scalar_type());
}

// The log ratio of which gmpo takes the mean: clipped in the direction in which the advantage
// pushes.
at::Tensor gmpo_log_ratio(const at::Tensor& log_ratio, const at::Tensor& advantage,
                          const AlgorithmConfig& config) {
  const at::Tensor sign = advantage.sign();
  return sign *
         at::minimum(sign * log_ratio, sign * log_ratio.clamp(-config.clip_low, config.clip_high));
}

at::Tensor k3_of(const at::Tensor& difference, double bound) {
  if (bound == 0) {
    return (-difference).exp() + difference - 1.0;
  }
  const at::Tensor d = difference.clamp(-kMaxLogRatio, kMaxLogRatio);
  return ((-d).exp() + d - 1.0).clamp_max(bound);
}

at::Tensor k3_unbiased(const at::Tensor& k3, const at::Tensor& ratio, const AlgorithmConfig& config,
                       const SequenceMeans& sequences) {
  if (config.importance_level == ImportanceLevel::kToken) {
    return k3 * ratio;
  }
  // The ratio is shared by the sequence: every token's k3 is multiplied by it, and every token's
  // log-prob has a gradient through it.
  return k3 * ratio.detach() + sequences.of({k3})[0] * (ratio - ratio.detach());
}

}  // namespace

at::Tensor policy_log_ratio(const PolicyTerms& terms, const AlgorithmConfig& config,
                            const SequenceMeans& sequences) {
  const at::Tensor of_token = (terms.logprob_n - terms.old_n).clamp(-kMaxLogRatio, kMaxLogRatio);
  if (config.loss == PolicyLossName::kGmpo) {
    const at::Tensor bounded = gmpo_log_ratio(of_token, terms.advantage_n, config);
    return in_token_form(sequences.of({bounded})[0], bounded);
  }
  if (config.importance_level == ImportanceLevel::kSequence) {
    return in_token_form(sequences.of({of_token})[0], terms.logprob_n);
  }
  return of_token;
}

std::pair<double, double> ratio_bounds(const AlgorithmConfig& config) {
  if (config.loss == PolicyLossName::kCispo && config.cispo_bounds == CispoBounds::kAbsolute) {
    return {config.clip_low, config.clip_high};
  }
  return {1.0 - config.clip_low, 1.0 + config.clip_high};
}

at::Tensor policy_objective(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                            const AlgorithmConfig& config) {
  const at::Tensor ratio = log_ratio_n.exp();
  switch (config.loss) {
    case PolicyLossName::kPpoClip:
      return ppo_clip(terms.advantage_n, ratio, config);
    case PolicyLossName::kCispo:
      return cispo(terms, ratio, config);
    case PolicyLossName::kSapo:
      return sapo(terms.advantage_n, ratio, config);
    case PolicyLossName::kDppoTv:
      return dppo_tv(terms, ratio, config);
    case PolicyLossName::kGmpo:
      return -terms.advantage_n * ratio;
    case PolicyLossName::kReinforce:
      return -terms.advantage_n * terms.logprob_n;
  }
  throw std::invalid_argument("unknown algorithm.loss");
}

at::Tensor kl_estimate(const at::Tensor& logprob_n, const at::Tensor& reference_n,
                       const at::Tensor& log_ratio_n, const AlgorithmConfig& config,
                       const SequenceMeans& sequences) {
  const at::Tensor difference = logprob_n - reference_n;
  const auto bounded = [&](const at::Tensor& estimate) {
    return config.kl_bound > 0 ? estimate.clamp(-config.kl_bound, config.kl_bound) : estimate;
  };
  const auto k3 = [&] { return bounded(k3_of(difference, config.k3_bound)); };
  // k2 minus its own value: adds a gradient and no value.
  const auto straight = [&](const at::Tensor& value) {
    const at::Tensor k2 = 0.5 * difference.square();
    return k2 - k2.detach() + value.detach();
  };
  switch (config.kl_estimator) {
    case KlEstimator::kK1:
      return bounded(difference);
    case KlEstimator::kAbs:
      return bounded(difference.abs());
    case KlEstimator::kK2:
      return bounded(0.5 * difference.square());
    case KlEstimator::kK3:
      return k3();
    case KlEstimator::kK1Straight:
      return straight(bounded(difference));
    case KlEstimator::kAbsStraight:
      return straight(bounded(difference.abs()));
    case KlEstimator::kK3Straight:
      return straight(k3());
    case KlEstimator::kK3Score:
      return k3() * (logprob_n - logprob_n.detach()).exp();
    case KlEstimator::kK3Unbiased:
      return k3_unbiased(k3(), log_ratio_n.exp(), config, sequences);
  }
  throw std::invalid_argument("unknown algorithm.kl_estimator");
}

}  // namespace ringside::rl
