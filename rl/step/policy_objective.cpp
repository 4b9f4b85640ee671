#include "rl/step/policy_objective.h"

#include <ATen/ATen.h>

#include <stdexcept>

#include "rl/algorithm/kl_estimators.h"

namespace ringside::rl {
namespace {

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
  const PolicyLoss& loss = policy_loss(config.loss);
  if (loss.own_log_ratio != nullptr) {
    const LossOptions options = loss_options(config);
    return loss.own_log_ratio({terms.logprob_n, terms.old_n, terms.advantage_n, terms.chosen_n,
                               of_token, sequences, options});
  }
  if (config.importance_level == ImportanceLevel::kSequence) {
    return in_token_form(sequences.of({of_token})[0], terms.logprob_n);
  }
  return of_token;
}

at::Tensor policy_objective(const PolicyTerms& terms, const at::Tensor& log_ratio_n,
                            const AlgorithmConfig& config, const SequenceMeans& sequences) {
  const LossOptions options = loss_options(config);
  return policy_loss(config.loss)
      .term({terms.logprob_n, terms.old_n, terms.advantage_n, terms.chosen_n, log_ratio_n,
             sequences, options});
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
