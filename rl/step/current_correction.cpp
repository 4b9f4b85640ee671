#include "rl/step/current_correction.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <stdexcept>

#include "rl/algorithm/kl_estimators.h"
#include "rl/config/rejections.h"

namespace ringside::rl {
namespace {

at::Tensor bounded(const at::Tensor& log_ratio_n) {
  return log_ratio_n.clamp(-kMaxLogRatio, kMaxLogRatio);
}

at::Tensor ratio_at(CorrectionLevel level, const at::Tensor& log_ratio_n,
                    const SequenceMeans& sequences) {
  switch (level) {
    case CorrectionLevel::kToken:
      return bounded(log_ratio_n).exp();
    case CorrectionLevel::kSequence:
      return bounded(sequences.sums_of({log_ratio_n})[0]).exp();
    case CorrectionLevel::kGeometric:
      return bounded(sequences.of({log_ratio_n})[0]).exp();
  }
  throw std::invalid_argument("unknown algorithm.correction.level");
}

// Weights by the mode, and in kept_n what mask and seq_mask_tis reject.
CurrentCorrection by_mode(const at::Tensor& log_ratio_n, const CorrectionConfig& config,
                          const SequenceMeans& sequences) {
  const auto inside = [&](const at::Tensor& ratio_n) {
    return at::logical_and(ratio_n.ge(config.low), ratio_n.le(config.high));
  };
  const at::Tensor ones_n = at::ones_like(log_ratio_n), all_n = ones_n.to(at::kBool);
  if (config.mode == CorrectionMode::kNone) {
    return {ones_n, all_n};
  }
  const at::Tensor ratio_n = ratio_at(config.level, log_ratio_n, sequences);
  switch (config.mode) {
    case CorrectionMode::kTis:
      return {ratio_n.clamp(config.low, config.high), all_n};
    case CorrectionMode::kIcepop:
      return {ratio_n * inside(ratio_n), all_n};
    case CorrectionMode::kMask:
      return {ones_n, inside(ratio_n)};
    case CorrectionMode::kSeqMaskTis:
      return {config.token_high > 0 ? ratio_n.clamp_max(config.token_high) : ratio_n,
              inside(ratio_at(CorrectionLevel::kGeometric, log_ratio_n, sequences))};
    case CorrectionMode::kNone:
      break;
  }
  throw std::invalid_argument("unknown algorithm.correction.mode");
}

at::Tensor statistic(RejectionStatistic which, const at::Tensor& log_ratio_n) {
  const at::Tensor d = bounded(log_ratio_n);
  switch (which) {
    case RejectionStatistic::kK1:
      return -d;
    case RejectionStatistic::kK2:
      return 0.5 * d.square();
    case RejectionStatistic::kK3:
      return d.exp() - 1.0 - d;
  }
  throw std::invalid_argument("unknown statistic of a rejection");
}

at::Tensor at_level(RejectionLevel level, const at::Tensor& value_n,
                    const SequenceMeans& sequences) {
  switch (level) {
    case RejectionLevel::kToken:
      return value_n;
    case RejectionLevel::kSum:
      return sequences.sums_of({value_n})[0];
    case RejectionLevel::kMean:
      return sequences.of({value_n})[0];
    case RejectionLevel::kMax:
      return sequences.max_of(value_n);
  }
  throw std::invalid_argument("unknown level of a rejection");
}

at::Tensor passes(const Rejection& rejection, const at::Tensor& log_ratio_n,
                  const SequenceMeans& sequences) {
  const at::Tensor value_n =
      at_level(rejection.level, statistic(rejection.statistic, log_ratio_n), sequences);
  if (rejection.statistic != RejectionStatistic::kK1) {
    return value_n.le(rejection.high);
  }
  return at::logical_and(value_n.ge(std::log(rejection.low)), value_n.le(std::log(rejection.high)));
}

}  // namespace

CurrentCorrection current_correction(const at::Tensor& logprob_n, const at::Tensor& rollout_n,
                                     const CorrectionConfig& config,
                                     const SequenceMeans& sequences) {
  const at::NoGradGuard no_grad;
  const at::Tensor log_ratio_n = logprob_n.detach() - rollout_n;
  CurrentCorrection correction = by_mode(log_ratio_n, config, sequences);
  for (const Rejection& rejection : parse_rejections(config.reject)) {
    correction.kept_n =
        at::logical_and(correction.kept_n, passes(rejection, log_ratio_n, sequences));
  }
  correction.weight_n = correction.weight_n * correction.kept_n;
  return correction;
}

}  // namespace ringside::rl
