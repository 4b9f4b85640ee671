#include "rl/algorithm/loss_weights.h"

#include <numeric>
#include <stdexcept>
#include <string>

namespace ringside::rl {

std::vector<double> loss_weights(std::span<const int64_t> loss_tokens, LossAggregation aggregation,
                                 double loss_divisor) {
  if (aggregation == LossAggregation::kConstant && !(loss_divisor > 0.0)) {
    throw std::invalid_argument("loss_aggregation constant needs a positive loss_divisor, got " +
                                std::to_string(loss_divisor));
  }
  const auto sequences = static_cast<double>(loss_tokens.size());
  const auto tokens =
      static_cast<double>(std::accumulate(loss_tokens.begin(), loss_tokens.end(), int64_t{0}));
  std::vector<double> weights;
  for (const int64_t n : loss_tokens) {
    double denominator = 1.0;
    switch (aggregation) {
      case LossAggregation::kTokenMean:
        denominator = tokens;
        break;
      case LossAggregation::kSeqMeanTokenMean:
        denominator = sequences * static_cast<double>(n);
        break;
      case LossAggregation::kSeqMeanTokenSum:
        denominator = sequences;
        break;
      case LossAggregation::kTokenSum:
      case LossAggregation::kMicroBatchTokenMean:
        break;
      case LossAggregation::kConstant:
        denominator = sequences * loss_divisor;
        break;
    }
    weights.push_back(n > 0 ? 1.0 / denominator : 0.0);
  }
  return weights;
}

}  // namespace ringside::rl
