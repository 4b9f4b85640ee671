#include "rl/algorithm/advantages.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ringside::rl {
namespace {

// One row per group.
using Groups =
    Eigen::Map<const Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

Groups as_groups(std::span<const double> rewards, int64_t group_size) {
  if (group_size < 1 || rewards.size() % static_cast<std::size_t>(group_size) != 0) {
    throw std::invalid_argument("advantages: " + std::to_string(rewards.size()) +
                                " rewards are not whole groups of " + std::to_string(group_size));
  }
  return {rewards.data(), static_cast<Eigen::Index>(rewards.size()) / group_size, group_size};
}

// Compares the values themselves: the mean of equal numbers need not equal them exactly.
bool all_equal(const Eigen::ArrayXd& values) {
  return values.size() == 0 || (values == values[0]).all();
}

double standard_deviation(const Eigen::ArrayXd& values, bool unbiased) {
  if (all_equal(values)) {
    return 0.0;
  }
  const Eigen::Index n = values.size();
  const double squares = (values - values.mean()).square().sum();
  return std::sqrt(squares / static_cast<double>(unbiased ? n - 1 : n));
}

Eigen::ArrayXd without(const Eigen::ArrayXd& values, Eigen::Index i) {
  Eigen::ArrayXd others(values.size() - 1);
  others << values.head(i), values.tail(values.size() - i - 1);
  return others;
}

// The divisors of one group. batch_std: standard deviation of all rewards of the step.
Eigen::ArrayXd divisors(const Eigen::ArrayXd& group, double batch_std,
                        const AdvantageConfig& config) {
  switch (config.std) {
    case AdvantageStd::kGroup:
      return Eigen::ArrayXd::Constant(group.size(),
                                      standard_deviation(group, config.unbiased) + config.eps);
    case AdvantageStd::kBatch:
      return Eigen::ArrayXd::Constant(group.size(), batch_std + config.eps);
    case AdvantageStd::kLeaveOneOut: {
      Eigen::ArrayXd result(group.size());
      for (Eigen::Index i = 0; i < group.size(); ++i) {
        const Eigen::ArrayXd others = without(group, i);
        result[i] =
            all_equal(others) ? 1.0 : standard_deviation(others, config.unbiased) + config.eps;
      }
      return result;
    }
    case AdvantageStd::kNone:
      return Eigen::ArrayXd::Ones(group.size());
  }
  throw std::invalid_argument("unknown algorithm.advantage.std");
}

// r_max - r_second for the best, 0 for the others.
Eigen::ArrayXd lead_of_the_best(const Eigen::ArrayXd& group) {
  Eigen::Index best = 0;
  const double largest = group.maxCoeff(&best);
  Eigen::ArrayXd result = Eigen::ArrayXd::Zero(group.size());
  result[best] = largest - without(group, best).maxCoeff();
  return result;
}

// The advantages of a group of at least two whose rewards are not all equal.
Eigen::ArrayXd advantages_of(const Eigen::ArrayXd& group, double batch_std,
                             const AdvantageConfig& config) {
  const double mean = group.mean();
  const auto others = static_cast<double>(group.size() - 1);
  switch (config.estimator) {
    case AdvantageEstimator::kGroupMean:
      return (group - mean) / divisors(group, batch_std, config);
    case AdvantageEstimator::kRloo:
      return (group - (group.sum() - group) / others) / divisors(group, batch_std, config);
    case AdvantageEstimator::kPassAtK:
      return lead_of_the_best(group) / divisors(group, batch_std, config);
    case AdvantageEstimator::kMaxRl:
      return mean > 0 ? Eigen::ArrayXd((group - mean) / mean) : Eigen::ArrayXd::Zero(group.size());
    case AdvantageEstimator::kReinforce:
    case AdvantageEstimator::kGdpo:
    case AdvantageEstimator::kGae:
    case AdvantageEstimator::kGiven:
      break;
  }
  throw std::invalid_argument("unreachable: the estimator was checked");
}

std::string word(auto value) { return std::string(to_string(value)); }

void check_std(const AdvantageConfig& config, bool any) {
  if (!any && config.std != AdvantageStd::kGroup && config.std != AdvantageStd::kNone) {
    throw std::invalid_argument("advantages: estimator " + word(config.estimator) +
                                " knows std group and none, got " + word(config.std));
  }
}

}  // namespace

std::vector<double> group_advantages(std::span<const double> rewards, int64_t group_size,
                                     const AdvantageConfig& config) {
  const auto of = config.estimator;
  if (of == AdvantageEstimator::kGdpo || of == AdvantageEstimator::kReinforce ||
      of == AdvantageEstimator::kGae || of == AdvantageEstimator::kGiven) {
    throw std::invalid_argument("group_advantages: estimator " + word(of) +
                                " is not made of one reward a sample");
  }
  check_std(config, of == AdvantageEstimator::kGroupMean || of == AdvantageEstimator::kRloo);
  const Groups groups = as_groups(rewards, group_size);
  const double batch_std = standard_deviation(groups.reshaped<Eigen::RowMajor>(), config.unbiased);
  std::vector<double> advantages(rewards.size(), 0.0);
  for (Eigen::Index g = 0; g < groups.rows(); ++g) {
    const Eigen::ArrayXd group = groups.row(g);
    if (!all_equal(group)) {
      Eigen::Map<Eigen::ArrayXd>(advantages.data() + g * group_size, group_size) =
          advantages_of(group, batch_std, config);
    }
  }
  return advantages;
}

std::vector<double> gdpo_advantages(std::span<const std::vector<double>> rewards,
                                    std::span<const double> weights, int64_t group_size,
                                    const AdvantageConfig& config) {
  if (rewards.empty() || rewards.size() != weights.size()) {
    throw std::invalid_argument("gdpo_advantages: " + std::to_string(rewards.size()) +
                                " rewards with " + std::to_string(weights.size()) +
                                " weights; expected at least one, and as many weights");
  }
  AdvantageConfig each = config;
  each.estimator = AdvantageEstimator::kGroupMean;
  check_std(config, /*any=*/false);
  const auto samples = static_cast<Eigen::Index>(rewards[0].size());
  Eigen::ArrayXd sum = Eigen::ArrayXd::Zero(samples);
  for (std::size_t r = 0; r < rewards.size(); ++r) {
    const auto normalised = group_advantages(rewards[r], group_size, each);
    if (static_cast<Eigen::Index>(normalised.size()) != samples) {
      throw std::invalid_argument("gdpo_advantages: reward " + std::to_string(r) +
                                  " is given for " + std::to_string(normalised.size()) +
                                  " samples, the first for " + std::to_string(samples));
    }
    sum += weights[r] * Eigen::Map<const Eigen::ArrayXd>(normalised.data(), samples);
  }
  std::vector<double> advantages(rewards[0].size(), 0.0);
  if (!all_equal(sum)) {
    Eigen::Map<Eigen::ArrayXd>(advantages.data(), samples) =
        (sum - sum.mean()) / (standard_deviation(sum, config.unbiased) + config.eps);
  }
  return advantages;
}

std::vector<bool> groups_without_variance(std::span<const double> rewards, int64_t group_size) {
  const Groups groups = as_groups(rewards, group_size);
  std::vector<bool> equal;
  for (Eigen::Index g = 0; g < groups.rows(); ++g) {
    equal.push_back(all_equal(groups.row(g)));
  }
  return equal;
}

RewardStatistics reward_statistics(std::span<const double> rewards, int64_t group_size) {
  const Groups groups = as_groups(rewards, group_size);
  RewardStatistics stats;
  if (groups.size() == 0) {
    return stats;
  }
  const auto count = static_cast<double>(groups.rows());
  stats.reward = groups.mean();
  for (Eigen::Index g = 0; g < groups.rows(); ++g) {
    stats.reward_std += standard_deviation(groups.row(g), /*unbiased=*/true) / count;
    stats.frac_reward_zero_std += all_equal(groups.row(g)) ? 1.0 / count : 0.0;
  }
  return stats;
}

}  // namespace ringside::rl
