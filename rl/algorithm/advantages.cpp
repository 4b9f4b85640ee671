#include "rl/algorithm/advantages.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringside::rl {
namespace {

// The samples of one group that have a score.
struct Group {
  std::vector<std::size_t> place;  // of each among the step's samples
  Eigen::ArrayXd rewards;
};

Eigen::ArrayXd array_of(const std::vector<double>& values) {
  return Eigen::Map<const Eigen::ArrayXd>(values.data(), static_cast<Eigen::Index>(values.size()));
}

std::vector<Group> groups_of(std::span<const double> rewards, int64_t group_size,
                             const std::vector<bool>& scored) {
  if (group_size < 1 || rewards.size() % static_cast<std::size_t>(group_size) != 0) {
    throw std::invalid_argument("advantages: " + std::to_string(rewards.size()) +
                                " rewards are not whole groups of " + std::to_string(group_size));
  }
  if (!scored.empty() && scored.size() != rewards.size()) {
    throw std::invalid_argument("advantages: " + std::to_string(rewards.size()) + " rewards, but " +
                                std::to_string(scored.size()) +
                                " flags of which samples have a score");
  }
  std::vector<Group> groups;
  for (std::size_t first = 0; first < rewards.size(); first += group_size) {
    Group group;
    std::vector<double> values;
    for (std::size_t i = first; i < first + group_size; ++i) {
      if (scored.empty() || scored[i]) {
        group.place.push_back(i);
        values.push_back(rewards[i]);
      }
    }
    group.rewards = array_of(values);
    groups.push_back(std::move(group));
  }
  return groups;
}

// The rewards of all groups, one group after another.
Eigen::ArrayXd all_rewards(const std::vector<Group>& groups) {
  std::vector<double> all;
  for (const Group& group : groups) {
    all.insert(all.end(), group.rewards.begin(), group.rewards.end());
  }
  return array_of(all);
}

void put(const Group& group, const Eigen::ArrayXd& values, std::vector<double>& to) {
  for (std::size_t i = 0; i < group.place.size(); ++i) {
    to[group.place[i]] = values[static_cast<Eigen::Index>(i)];
  }
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

// The baseline of opo: the mean reward, each weighted by its sample's loss tokens.
double mean_by_length(const Group& group, std::span<const int64_t> loss_tokens) {
  double sum = 0.0, tokens = 0.0;
  for (std::size_t i = 0; i < group.place.size(); ++i) {
    const auto length = static_cast<double>(loss_tokens[group.place[i]]);
    sum += length * group.rewards[static_cast<Eigen::Index>(i)];
    tokens += length;
  }
  return sum / tokens;
}

// Whether the group has a token that its advantages are given to.
bool has_loss_token(const Group& group, std::span<const int64_t> loss_tokens) {
  return std::any_of(group.place.begin(), group.place.end(),
                     [&](std::size_t place) { return loss_tokens[place] > 0; });
}

// What config.gpg_scale multiplies by.
double gpg_factor(const std::vector<Group>& groups) {
  const Eigen::ArrayXd all = all_rewards(groups);
  const auto counted = static_cast<double>((all != 0.0).count());
  return static_cast<double>(all.size()) / std::max(1.0, counted);
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
    case AdvantageEstimator::kOpo:
    case AdvantageEstimator::kRemax:
    case AdvantageEstimator::kOptimalTokenBaseline:
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
                                     const AdvantageConfig& config, const std::vector<bool>& scored,
                                     std::span<const int64_t> loss_tokens) {
  const auto of = config.estimator;
  if (of == AdvantageEstimator::kGdpo || of == AdvantageEstimator::kReinforce ||
      of == AdvantageEstimator::kOptimalTokenBaseline || of == AdvantageEstimator::kGae ||
      of == AdvantageEstimator::kGiven || of == AdvantageEstimator::kRemax) {
    throw std::invalid_argument("group_advantages: estimator " + word(of) +
                                " is not made of one reward a sample");
  }
  const bool by_length = of == AdvantageEstimator::kOpo;
  if (by_length && loss_tokens.size() != rewards.size()) {
    throw std::invalid_argument("group_advantages: estimator opo got the lengths of " +
                                std::to_string(loss_tokens.size()) + " samples, expected " +
                                std::to_string(rewards.size()));
  }
  check_std(config, of == AdvantageEstimator::kGroupMean || of == AdvantageEstimator::kRloo);
  const auto groups = groups_of(rewards, group_size, scored);
  const double batch_std = standard_deviation(all_rewards(groups), config.unbiased);
  std::vector<double> advantages(rewards.size(), 0.0);
  const double factor = config.gpg_scale ? gpg_factor(groups) : 1.0;
  for (const Group& group : groups) {
    if (all_equal(group.rewards) || (by_length && !has_loss_token(group, loss_tokens))) {
      continue;
    }
    put(group,
        factor * (by_length ? group.rewards - mean_by_length(group, loss_tokens)
                            : advantages_of(group.rewards, batch_std, config)),
        advantages);
  }
  return advantages;
}

std::vector<double> gdpo_advantages(std::span<const std::vector<double>> rewards,
                                    std::span<const double> weights, int64_t group_size,
                                    const AdvantageConfig& config,
                                    const std::vector<bool>& scored) {
  if (rewards.empty() || rewards.size() != weights.size()) {
    throw std::invalid_argument("gdpo_advantages: " + std::to_string(rewards.size()) +
                                " rewards with " + std::to_string(weights.size()) +
                                " weights; expected at least one, and as many weights");
  }
  AdvantageConfig each = config;
  each.estimator = AdvantageEstimator::kGroupMean;
  check_std(config, /*any=*/false);
  const std::size_t samples = rewards[0].size();
  std::vector<double> sum(samples, 0.0);
  for (std::size_t r = 0; r < rewards.size(); ++r) {
    const auto normalised = group_advantages(rewards[r], group_size, each, scored);
    if (normalised.size() != samples) {
      throw std::invalid_argument("gdpo_advantages: reward " + std::to_string(r) +
                                  " is given for " + std::to_string(normalised.size()) +
                                  " samples, the first for " + std::to_string(samples));
    }
    for (std::size_t i = 0; i < samples; ++i) {
      sum[i] += weights[r] * normalised[i];
    }
  }
  std::vector<double> advantages(samples, 0.0);
  const auto groups = groups_of(sum, group_size, scored);
  const Eigen::ArrayXd all = all_rewards(groups);
  if (!all_equal(all)) {
    const double mean = all.mean();
    const double divisor = standard_deviation(all, config.unbiased) + config.eps;
    for (const Group& group : groups) {
      put(group, (group.rewards - mean) / divisor, advantages);
    }
  }
  return advantages;
}

std::vector<bool> groups_without_variance(std::span<const double> rewards, int64_t group_size,
                                          const std::vector<bool>& scored) {
  std::vector<bool> equal;
  for (const Group& group : groups_of(rewards, group_size, scored)) {
    equal.push_back(all_equal(group.rewards));
  }
  return equal;
}

RewardStatistics reward_statistics(std::span<const double> rewards, int64_t group_size,
                                   const std::vector<bool>& scored) {
  const auto groups = groups_of(rewards, group_size, scored);
  const Eigen::ArrayXd all = all_rewards(groups);
  RewardStatistics stats;
  if (all.size() == 0) {
    return stats;
  }
  const auto count = static_cast<double>(groups.size());
  stats.reward = all.mean();
  for (const Group& group : groups) {
    stats.reward_std += standard_deviation(group.rewards, /*unbiased=*/true) / count;
    stats.frac_reward_zero_std += all_equal(group.rewards) ? 1.0 / count : 0.0;
  }
  return stats;
}

}  // namespace ringside::rl
