#include "rl/algorithm/advantages.h"

#include <Eigen/Core>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ringside::rl {
namespace {

// One row per group.
using Groups = Eigen::Map<const Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

Groups as_groups(std::span<const double> rewards, int64_t group_size) {
  if (group_size < 1 || rewards.size() % static_cast<std::size_t>(group_size) != 0) {
    throw std::invalid_argument("advantages: " + std::to_string(rewards.size()) +
                                " rewards are not whole groups of " + std::to_string(group_size));
  }
  return {rewards.data(), static_cast<Eigen::Index>(rewards.size()) / group_size, group_size};
}

double standard_deviation(const Eigen::ArrayXd& values, bool unbiased) {
  const Eigen::Index n = values.size();
  if (n < 2) {
    return 0.0;
  }
  const double squares = (values - values.mean()).square().sum();
  return std::sqrt(squares / static_cast<double>(unbiased ? n - 1 : n));
}

}  // namespace

std::vector<double> group_advantages(std::span<const double> rewards, int64_t group_size,
                                     const AdvantageConfig& config) {
  const Groups groups = as_groups(rewards, group_size);
  std::vector<double> advantages(rewards.size());
  for (Eigen::Index g = 0; g < groups.rows(); ++g) {
    const Eigen::ArrayXd row = groups.row(g);
    const double divisor = config.std == AdvantageStd::kNone
                               ? 1.0
                               : standard_deviation(row, config.unbiased) + config.eps;
    Eigen::Map<Eigen::ArrayXd>(advantages.data() + g * group_size, group_size) =
        (row - row.mean()) / divisor;
  }
  return advantages;
}

RewardStatistics reward_statistics(std::span<const double> rewards, int64_t group_size) {
  const Groups groups = as_groups(rewards, group_size);
  RewardStatistics stats;
  if (groups.size() == 0) {
    return stats;
  }
  stats.reward = groups.mean();
  for (Eigen::Index g = 0; g < groups.rows(); ++g) {
    const Eigen::ArrayXd row = groups.row(g);
    stats.reward_std += standard_deviation(row, /*unbiased=*/true) / static_cast<double>(groups.rows());
    stats.frac_reward_zero_std += (row == row[0]).all() ? 1.0 / static_cast<double>(groups.rows()) : 0.0;
  }
  return stats;
}

}  // namespace ringside::rl
