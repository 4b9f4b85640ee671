#include "rl/algorithm/correction.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>

#include "rl/algorithm/kl_estimators.h"
#include "rl/config/rejections.h"

namespace ringside::rl {
namespace {

constexpr std::string_view kWho = "correction_weights";

double bounded_exp(double log_ratio) {
  return std::exp(std::clamp(log_ratio, -kMaxLogRatio, kMaxLogRatio));
}

double mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) {
    sum += value;
  }
  return sum / static_cast<double>(values.size());
}

// A sample with loss tokens: its range of tokens, and sums over them.
struct Part {
  int64_t begin = 0, end = 0;
  double log_ratio = 0.0, old = 0.0, rollout = 0.0;

  double tokens() const { return static_cast<double>(end - begin); }
};

std::vector<Part> parts_of(const StepColumns& table) {
  std::vector<Part> parts;
  for (int64_t sample = 0; sample < table.samples(); ++sample) {
    Part part{.begin = table.begin[sample], .end = table.begin[sample + 1]};
    for (int64_t t = part.begin; t < part.end; ++t) {
      part.log_ratio += table.old[t] - table.rollout[t];
      part.old += table.old[t];
      part.rollout += table.rollout[t];
    }
    if (part.end > part.begin) {
      parts.push_back(part);
    }
  }
  return parts;
}

// The ratio of each token at that level, [N].
std::vector<double> ratios_at(CorrectionLevel level, const StepColumns& table,
                              const std::vector<Part>& parts) {
  std::vector<double> ratio;
  for (const Part& part : parts) {
    for (int64_t t = part.begin; t < part.end; ++t) {
      switch (level) {
        case CorrectionLevel::kToken:
          ratio.push_back(bounded_exp(table.old[t] - table.rollout[t]));
          break;
        case CorrectionLevel::kSequence:
          ratio.push_back(bounded_exp(part.log_ratio));
          break;
        case CorrectionLevel::kGeometric:
          ratio.push_back(bounded_exp(part.log_ratio / part.tokens()));
          break;
      }
    }
  }
  return ratio;
}

std::vector<double> weights_of(const StepColumns& table, const std::vector<Part>& parts,
                               const std::vector<double>& ratio, const CorrectionConfig& config) {
  const auto inside = [&](double r) { return r >= config.low && r <= config.high; };
  std::vector<double> weight = ratio;
  switch (config.mode) {
    case CorrectionMode::kNone:
      std::fill(weight.begin(), weight.end(), 1.0);
      break;
    case CorrectionMode::kTis:
      for (double& w : weight) {
        w = std::clamp(w, config.low, config.high);
      }
      break;
    case CorrectionMode::kIcepop:
      for (double& w : weight) {
        w = inside(w) ? w : 0.0;
      }
      break;
    case CorrectionMode::kMask:
      for (double& w : weight) {
        w = inside(w) ? 1.0 : 0.0;
      }
      break;
    case CorrectionMode::kSeqMaskTis: {
      const auto of_sequences = ratios_at(CorrectionLevel::kGeometric, table, parts);
      for (std::size_t t = 0; t < weight.size(); ++t) {
        const double of_token =
            config.token_high > 0 ? std::min(weight[t], config.token_high) : weight[t];
        weight[t] = inside(of_sequences[t]) ? of_token : 0.0;
      }
      break;
    }
  }
  return weight;
}

// Divides the weights by their mean over tokens, or at the other levels over sequences.
void normalize(const std::vector<Part>& parts, CorrectionLevel level, std::vector<double>& weight) {
  std::vector<double> counted;
  for (const Part& part : parts) {
    const int64_t end = level == CorrectionLevel::kToken ? part.end : part.begin + 1;
    counted.insert(counted.end(), weight.begin() + part.begin, weight.begin() + end);
  }
  const double of_all = counted.empty() ? 0.0 : mean(counted);
  if (of_all > 1e-8) {
    for (double& w : weight) {
      w /= of_all;
    }
  }
}

double value_of(RejectionStatistic statistic, double log_ratio) {
  const double bounded = std::clamp(log_ratio, -kMaxLogRatio, kMaxLogRatio);
  switch (statistic) {
    case RejectionStatistic::kK1:
      return -bounded;
    case RejectionStatistic::kK2:
      return 0.5 * bounded * bounded;
    case RejectionStatistic::kK3:
      return std::exp(bounded) - 1.0 - bounded;
  }
  throw std::invalid_argument("unknown statistic of a rejection");
}

// The statistic of a sample from those of its tokens.
double of_sample(RejectionLevel level, std::span<const double> values) {
  double sum = 0.0, largest = values[0];
  for (const double value : values) {
    sum += value;
    largest = std::max(largest, value);
  }
  switch (level) {
    case RejectionLevel::kSum:
      return sum;
    case RejectionLevel::kMean:
      return sum / static_cast<double>(values.size());
    case RejectionLevel::kMax:
      return largest;
    case RejectionLevel::kToken:
      break;
  }
  throw std::invalid_argument("a criterion of tokens has no statistic of samples");
}

// Marks the tokens that a criterion does not keep.
void reject_by(const Rejection& rejection, const StepColumns& table, const std::vector<Part>& parts,
               std::vector<bool>& kept) {
  const bool is_ratio = rejection.statistic == RejectionStatistic::kK1;
  const double low = is_ratio ? std::log(rejection.low) : 0.0;
  const double high = is_ratio ? std::log(rejection.high) : rejection.high;
  const auto keeps = [&](double value) { return value <= high && (!is_ratio || value >= low); };
  for (const Part& part : parts) {
    std::vector<double> values;
    for (int64_t t = part.begin; t < part.end; ++t) {
      values.push_back(value_of(rejection.statistic, table.old[t] - table.rollout[t]));
    }
    const bool whole =
        rejection.level == RejectionLevel::kToken || keeps(of_sample(rejection.level, values));
    for (int64_t t = part.begin; t < part.end; ++t) {
      const bool this_one =
          rejection.level != RejectionLevel::kToken || keeps(values[t - part.begin]);
      kept[t] = kept[t] && whole && this_one;
    }
  }
}

// Which tokens neither the mode nor config.reject rejects.
std::vector<bool> kept_tokens(const StepColumns& table, const std::vector<Part>& parts,
                              const std::vector<double>& weight, const CorrectionConfig& config) {
  std::vector<bool> kept(weight.size(), true);
  if (config.mode == CorrectionMode::kMask || config.mode == CorrectionMode::kSeqMaskTis) {
    for (std::size_t t = 0; t < weight.size(); ++t) {
      kept[t] = weight[t] != 0.0;
    }
  }
  for (const Rejection& rejection : parse_rejections(config.reject)) {
    reject_by(rejection, table, parts, kept);
  }
  return kept;
}

// Distances between the two policies, independent of the correction.
void add_distances(const StepColumns& table, const std::vector<Part>& parts,
                   CorrectionStatistics& s) {
  std::vector<double> k1, k3, squares, errors;
  for (std::size_t t = 0; t < table.old.size(); ++t) {
    const double log_ratio = table.old[t] - table.rollout[t];
    const double ratio = bounded_exp(log_ratio);
    k1.push_back(-log_ratio);
    k3.push_back(kl_value(KlEstimator::kK3, -std::clamp(log_ratio, -kMaxLogRatio, kMaxLogRatio)));
    squares.push_back(ratio * ratio);
    errors.push_back(bounded_exp(std::abs(log_ratio)));
  }
  s.kl = mean(k1);
  s.k3_kl = mean(k3);
  s.chi2_token = mean(squares) - 1.0;
  s.token_mult_prob_error = mean(errors);
  std::vector<double> seq_squares, old_ppl, rollout_ppl, ppl_ratio;
  for (const Part& part : parts) {
    const double ratio = bounded_exp(part.log_ratio);
    seq_squares.push_back(ratio * ratio);
    old_ppl.push_back(std::exp(-part.old / part.tokens()));
    rollout_ppl.push_back(std::exp(-part.rollout / part.tokens()));
    ppl_ratio.push_back(std::exp(-part.log_ratio / part.tokens()));
  }
  s.chi2_seq = mean(seq_squares) - 1.0;
  s.training_ppl = mean(old_ppl);
  s.rollout_ppl = mean(rollout_ppl);
  s.ppl_ratio = mean(ppl_ratio);
}

// Shares of tokens (level token) or samples (the others) whose ratio is out of bounds.
void add_out_of_bounds(const std::vector<Part>& parts, const std::vector<double>& ratio,
                       const CorrectionConfig& config, CorrectionStatistics& s) {
  const double low = config.low > 0 ? config.low : 1.0 / config.high;
  std::vector<double> high_share, low_share;
  for (const Part& part : parts) {
    const int64_t end = config.level == CorrectionLevel::kToken ? part.end : part.begin + 1;
    for (int64_t t = part.begin; t < end; ++t) {
      high_share.push_back(ratio[t] > config.high ? 1.0 : 0.0);
      low_share.push_back(ratio[t] < low ? 1.0 : 0.0);
    }
  }
  s.rollout_is_ratio_fraction_high = mean(high_share);
  s.rollout_is_ratio_fraction_low = mean(low_share);
}

// Statistics of the weights before a rejection; for modes whose weights are no ratios, of the
// weights that tis would give.
void add_weights(const std::vector<double>& ratio, const std::vector<double>& weight,
                 const CorrectionConfig& config, CorrectionStatistics& s) {
  const bool ratios = config.mode != CorrectionMode::kNone && config.mode != CorrectionMode::kMask;
  std::vector<double> importance = ratios ? weight : ratio;
  std::vector<double> squares;
  for (std::size_t t = 0; t < importance.size(); ++t) {
    importance[t] = ratios ? importance[t] : std::clamp(importance[t], config.low, config.high);
    squares.push_back(importance[t] * importance[t]);
  }
  s.rollout_is_mean = mean(importance);
  const double square = mean(squares);
  s.rollout_is_eff_sample_size = square > 0 ? s.rollout_is_mean * s.rollout_is_mean / square : 0.0;
}

double share_of_zeros(const std::vector<double>& weight) {
  const auto zeros = std::count(weight.begin(), weight.end(), 0.0);
  return static_cast<double>(zeros) / static_cast<double>(weight.size());
}

}  // namespace

bool corrects(const CorrectionConfig& config) {
  return config.ratio_of == "old" &&
         (config.mode != CorrectionMode::kNone || !config.reject.empty());
}

bool corrects_in_loss(const CorrectionConfig& config) {
  return config.ratio_of == "current" &&
         (config.mode != CorrectionMode::kNone || !config.reject.empty());
}

void drop_rejected(StepColumns& columns, LossAggregation aggregation) {
  const std::vector<double>& kept = columns.kept;
  if (kept.empty()) {
    return;
  }
  if (kept.size() != columns.weight.size()) {
    throw std::invalid_argument("drop_rejected: " + std::to_string(kept.size()) +
                                " flags for the weights of " +
                                std::to_string(columns.weight.size()) + " loss tokens");
  }
  for (int64_t sample = 0; sample < columns.samples(); ++sample) {
    const int64_t begin = columns.begin[sample], end = columns.begin[sample + 1];
    const auto left = std::count(kept.begin() + begin, kept.begin() + end, 1.0);
    const double factor = aggregation == LossAggregation::kSeqMeanTokenMean && left > 0
                              ? static_cast<double>(end - begin) / static_cast<double>(left)
                              : 1.0;
    for (int64_t t = begin; t < end; ++t) {
      columns.weight[t] *= kept[t] * factor;
    }
  }
}

CorrectionResult correction_weights(const StepColumns& table, const CorrectionConfig& config) {
  check_samples(table, kWho);
  check_column(table, table.old, "old", kWho);
  check_column(table, table.rollout, "rollout", kWho);
  if (!(config.low <= config.high) || !(config.high > 0)) {
    throw std::invalid_argument("correction_weights: bounds " + std::to_string(config.low) +
                                " to " + std::to_string(config.high) + " hold no ratio");
  }
  if (config.mode == CorrectionMode::kSeqMaskTis && config.level != CorrectionLevel::kToken) {
    throw std::invalid_argument(
        "correction_weights: mode seq_mask_tis weighs tokens and masks by sequence; expected level "
        "token, got " +
        std::string(to_string(config.level)));
  }
  const std::vector<Part> parts = parts_of(table);
  const std::vector<double> ratio = ratios_at(config.level, table, parts);
  CorrectionResult result;
  result.weight = weights_of(table, parts, ratio, config);
  result.kept = kept_tokens(table, parts, result.weight, config);
  if (!parts.empty()) {
    add_distances(table, parts, result.statistics);
    add_out_of_bounds(parts, ratio, config, result.statistics);
    add_weights(ratio, result.weight, config, result.statistics);
  }
  if (config.normalize) {
    normalize(parts, config.level, result.weight);
  }
  for (std::size_t t = 0; t < result.weight.size(); ++t) {
    result.weight[t] = result.kept[t] ? result.weight[t] : 0.0;
  }
  if (!parts.empty()) {
    result.statistics.rollout_rs_masked_fraction = share_of_zeros(result.weight);
  }
  return result;
}

}  // namespace ringside::rl
