#include "rl/algorithm/token_advantages.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "rl/algorithm/advantages.h"
#include "rl/algorithm/kl_estimators.h"
#include "rl/algorithm/token_baseline.h"
#include "rl/config/teacher.h"
#include "rl/rewards/length_penalty.h"

namespace ringside::rl {
namespace {

constexpr std::string_view kAdvantages = "step_advantages";

void check_length(std::size_t got, std::size_t samples, const std::string& what) {
  if (got != samples) {
    throw std::invalid_argument(what + " for " + std::to_string(got) + " samples, expected " +
                                std::to_string(samples));
  }
}

void check_finite(const std::vector<double>& of_samples, const std::string& what) {
  for (std::size_t i = 0; i < of_samples.size(); ++i) {
    if (!std::isfinite(of_samples[i])) {
      throw std::invalid_argument(what + " of sample " + std::to_string(i) + " is " +
                                  std::to_string(of_samples[i]));
    }
  }
}

bool has_tokens(const StepColumns& table, int64_t sample) {
  return table.begin[sample + 1] > table.begin[sample];
}

void check_rewards(const StepColumns& table, const SampleRewards& rewards) {
  const auto samples = static_cast<std::size_t>(table.samples());
  check_length(rewards.total.size(), samples, "step_advantages: total rewards");
  if (!rewards.scored.empty()) {
    check_length(rewards.scored.size(), samples, "step_advantages: flags of scored samples");
  }
  check_finite(rewards.total, "step_advantages: the total reward");
  for (const TurnReward& turn : rewards.turns) {
    const std::string name =
        "step_advantages: the turn reward of sample " + std::to_string(turn.sample);
    if (turn.sample < 0 || turn.sample >= table.samples()) {
      throw std::invalid_argument(name + ", but there are " + std::to_string(samples) + " samples");
    }
    if (!std::isfinite(turn.value)) {
      throw std::invalid_argument(name + " is " + std::to_string(turn.value));
    }
    const int64_t begin = table.begin[turn.sample];
    const int64_t end = table.begin[turn.sample + 1];
    if (has_tokens(table, turn.sample) && (turn.token < begin || turn.token >= end)) {
      throw std::invalid_argument(name + " is at loss token " + std::to_string(turn.token) +
                                  ", outside its " + std::to_string(begin) + " to " +
                                  std::to_string(end));
    }
  }
}

// KL estimate of each token; empty if none is subtracted here.
std::vector<double> token_kl(const StepColumns& table, const AlgorithmConfig& config,
                             double kl_coef) {
  if (config.kl_in == KlIn::kLoss || kl_coef == 0.0) {
    return {};
  }
  const bool to_reference = config.kl_to == KlTo::kReference;
  const std::vector<double>& other = to_reference ? table.reference : table.rollout;
  check_column(table, table.old, "old", kAdvantages);
  check_column(table, other, to_reference ? "reference" : "rollout", kAdvantages);
  std::vector<double> kl(table.old.size());
  for (std::size_t t = 0; t < kl.size(); ++t) {
    kl[t] = bounded_kl_value(config, table.old[t] - other[t]);
  }
  return kl;
}

// x_t + decay_t x_t+1 + ..., over the tokens of each sample on its own.
std::vector<double> discounted_sums(const StepColumns& table, const std::vector<double>& x,
                                    double decay) {
  std::vector<double> sums(x.size());
  for (int64_t sample = 0; sample < table.samples(); ++sample) {
    double carried = 0.0;
    for (int64_t t = table.begin[sample + 1] - 1; t >= table.begin[sample]; --t) {
      carried = x[t] + decay * carried;
      sums[t] = carried;
    }
  }
  return sums;
}

std::vector<double> turn_sums(const StepColumns& table, const SampleRewards& rewards) {
  std::vector<double> sums(static_cast<std::size_t>(table.samples()), 0.0);
  for (const TurnReward& turn : rewards.turns) {
    sums[turn.sample] += turn.value;
  }
  return sums;
}

std::vector<double> sample_scores(const StepColumns& table, const SampleRewards& rewards) {
  std::vector<double> scores = turn_sums(table, rewards);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] += rewards.total[i];
  }
  return scores;
}

// StepAdvantages::kl.
double mean_kl(const StepColumns& table, const SampleRewards& rewards,
               const std::vector<double>& kl, KlAverage average) {
  if (kl.empty()) {
    return 0.0;
  }
  if (average == KlAverage::kTokens) {
    return std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(kl.size());
  }
  double sum = 0.0, samples = 0.0;
  for (int64_t i = 0; i < table.samples(); ++i) {
    samples += rewards.scored.empty() || rewards.scored[i] ? 1.0 : 0.0;
    if (has_tokens(table, i)) {
      sum += std::accumulate(kl.begin() + table.begin[i], kl.begin() + table.begin[i + 1], 0.0) /
             static_cast<double>(table.begin[i + 1] - table.begin[i]);
    }
  }
  return sum / samples;
}

// For kl_in reward: kl_coef times the sum of each sample's KL.
std::vector<double> kl_costs(const StepColumns& table, const std::vector<double>& kl,
                             const AlgorithmConfig& config, double kl_coef) {
  std::vector<double> costs(static_cast<std::size_t>(table.samples()), 0.0);
  if (config.kl_in == KlIn::kReward && !kl.empty()) {
    for (int64_t sample = 0; sample < table.samples(); ++sample) {
      for (int64_t t = table.begin[sample]; t < table.begin[sample + 1]; ++t) {
        costs[sample] += kl_coef * kl[t];
      }
    }
  }
  return costs;
}

std::vector<double> gdpo(const StepColumns& table, const SampleRewards& rewards,
                         const std::vector<double>& costs, int64_t group_size,
                         const AlgorithmConfig& config) {
  if (config.reward.clip > 0) {
    throw std::invalid_argument(
        "step_advantages: algorithm.reward.clip " + std::to_string(config.reward.clip) +
        " bounds the total, but estimator gdpo adds up each reward on its own; expected 0");
  }
  std::vector<std::vector<double>> components = rewards.by_name;
  std::vector<double> weights = rewards.weight;
  if (components.empty() || weights.size() != components.size() ||
      rewards.names.size() != components.size()) {
    throw std::invalid_argument("step_advantages: gdpo got " + std::to_string(components.size()) +
                                " rewards, " + std::to_string(weights.size()) + " weights and " +
                                std::to_string(rewards.names.size()) +
                                " names; expected at least one of each, as many");
  }
  for (std::size_t r = 0; r < components.size(); ++r) {
    check_length(components[r].size(), rewards.total.size(),
                 "step_advantages: reward " + rewards.names[r]);
    check_finite(components[r], "step_advantages: reward " + rewards.names[r]);
  }
  std::vector<double> rest = turn_sums(table, rewards);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    rest[i] -= costs[i];
  }
  components.push_back(
      std::move(rest));  // all 0 where there is neither turn nor KL: an advantage of 0
  weights.push_back(1.0);
  return gdpo_advantages(components, weights, group_size, config.advantage, rewards.scored);
}

// Loss tokens of each sample.
std::vector<int64_t> lengths_of(const StepColumns& table) {
  std::vector<int64_t> lengths;
  for (int64_t sample = 0; sample < table.samples(); ++sample) {
    lengths.push_back(table.begin[sample + 1] - table.begin[sample]);
  }
  return lengths;
}

// One value per sample, given to each of its tokens.
std::vector<double> by_sample(const StepColumns& table, const SampleRewards& rewards,
                              const std::vector<double>& kl, int64_t group_size,
                              const AlgorithmConfig& config, double kl_coef) {
  const auto costs = kl_costs(table, kl, config, kl_coef);
  std::vector<double> of_samples;
  if (config.advantage.estimator == AdvantageEstimator::kGdpo) {
    of_samples = gdpo(table, rewards, costs, group_size, config);
  } else {
    std::vector<double> scores = sample_scores(table, rewards);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      scores[i] -= costs[i];
    }
    of_samples =
        group_advantages(scores, group_size, config.advantage, rewards.scored, lengths_of(table));
  }
  std::vector<double> advantage;
  for (int64_t sample = 0; sample < table.samples(); ++sample) {
    advantage.insert(advantage.end(), table.begin[sample + 1] - table.begin[sample],
                     of_samples[sample]);
  }
  return advantage;
}

// For kl_in advantage with estimators that have no token rewards.
void take_off_later_kl(const StepColumns& table, const std::vector<double>& kl,
                       const AlgorithmConfig& config, double kl_coef,
                       std::vector<double>& advantage) {
  if (config.kl_in != KlIn::kAdvantage || kl.empty()) {
    return;
  }
  const auto later = discounted_sums(table, kl, config.advantage.gamma);
  for (std::size_t t = 0; t < advantage.size(); ++t) {
    advantage[t] -= kl_coef * later[t];
  }
}

std::vector<double> given(const StepColumns& table, const AlgorithmConfig& config) {
  check_column(table, table.given, "given", kAdvantages);
  if (config.kl_in == KlIn::kReward && config.kl_coef > 0) {
    throw std::invalid_argument(
        "step_advantages: algorithm.kl_in reward puts the KL into rewards, but estimator given "
        "takes advantages as they "
        "come; expected kl_in loss or advantage");
  }
  return table.given;
}

std::vector<double> token_rewards(const StepColumns& table, const SampleRewards& rewards,
                                  const std::vector<double>& kl, double kl_coef) {
  std::vector<double> reward(static_cast<std::size_t>(table.tokens()), 0.0);
  for (std::size_t t = 0; t < kl.size(); ++t) {
    reward[t] = -kl_coef * kl[t];
  }
  for (int64_t sample = 0; sample < table.samples(); ++sample) {
    if (has_tokens(table, sample)) {
      reward[table.begin[sample + 1] - 1] += rewards.total[sample];
    }
  }
  for (const TurnReward& turn : rewards.turns) {
    if (has_tokens(table, turn.sample)) {
      reward[turn.token] += turn.value;
    }
  }
  return reward;
}

// Takes the sample's baseline off each of its tokens.
void take_off_baselines(const StepColumns& table, const SampleRewards& rewards,
                        std::vector<double>& advantage) {
  check_length(rewards.baseline.size(), static_cast<std::size_t>(table.samples()),
               "step_advantages: rewards of greedy completions");
  check_finite(rewards.baseline, "step_advantages: the reward of the greedy completion");
  for (int64_t sample = 0; sample < table.samples(); ++sample) {
    for (int64_t t = table.begin[sample]; t < table.begin[sample + 1]; ++t) {
      advantage[t] -= rewards.baseline[sample];
    }
  }
}

void gae(const StepColumns& table, const std::vector<double>& reward, const AdvantageConfig& config,
         StepAdvantages& result) {
  check_column(table, table.value, "value", kAdvantages);
  std::vector<double> delta = reward;
  for (int64_t sample = 0; sample < table.samples(); ++sample) {
    double next_value = 0.0;  // nothing follows the last token of a sample
    for (int64_t t = table.begin[sample + 1] - 1; t >= table.begin[sample]; --t) {
      delta[t] += config.gamma * next_value - table.value[t];
      next_value = table.value[t];
    }
  }
  result.advantage = discounted_sums(table, delta, config.gamma * config.lambda);
  result.returns = result.advantage;
  for (std::size_t t = 0; t < result.returns.size(); ++t) {
    result.returns[t] += table.value[t];
  }
}

void whiten(const StepColumns& table, const AdvantageConfig& config,
            std::vector<double>& advantage) {
  Eigen::Map<Eigen::ArrayXd> tokens(advantage.data(), static_cast<Eigen::Index>(advantage.size()));
  Eigen::ArrayXd counted = tokens;
  if (config.whiten == Whiten::kSequences) {
    std::vector<double> means;
    for (int64_t sample = 0; sample < table.samples(); ++sample) {
      if (has_tokens(table, sample)) {
        means.push_back(
            tokens.segment(table.begin[sample], table.begin[sample + 1] - table.begin[sample])
                .mean());
      }
    }
    counted = Eigen::Map<Eigen::ArrayXd>(means.data(), static_cast<Eigen::Index>(means.size()));
  }
  const auto n = static_cast<double>(counted.size());
  if (n == 0) {
    return;
  }
  const double mean = counted.mean();
  const double squares = (counted - mean).square().sum();
  const double variance = squares / (config.unbiased ? std::max(n - 1, 1.0) : n);
  if ((counted == counted[0]).all()) {
    tokens -= counted[0];  // constant: no scale, and the mean need not equal the number exactly
  } else {
    const bool in_std = config.whiten_eps_in == WhitenEpsIn::kStd;
    tokens = (tokens - mean) / (in_std ? std::sqrt(variance) + config.whiten_eps
                                       : std::sqrt(variance + config.whiten_eps));
  }
}

void add_distillation(const StepColumns& table, const AlgorithmConfig& config,
                      std::vector<double>& advantage) {
  check_column(table, table.old, "old", kAdvantages);
  check_column(table, table.teacher, "teacher", kAdvantages);
  for (std::size_t t = 0; t < advantage.size(); ++t) {
    advantage[t] -= config.distillation.coef * (table.old[t] - table.teacher[t]);
  }
}

}  // namespace

SampleRewards shape_rewards(SampleRewards rewards, std::span<const int64_t> completion_tokens,
                            int64_t max_completion_tokens, const RewardShapingConfig& config) {
  const bool penalised = config.overlong_buffer_tokens > 0;
  if (penalised || !completion_tokens.empty()) {
    check_length(completion_tokens.size(), rewards.total.size(),
                 "shape_rewards: completion lengths");
  }
  for (double& weight : rewards.weight) {
    weight *= config.scale;
  }
  for (double& total : rewards.total) {
    total *= config.scale;
    total = config.clip > 0 ? std::clamp(total, -config.clip, config.clip) : total;
  }
  if (penalised) {
    std::vector<double> penalties;
    for (std::size_t i = 0; i < rewards.total.size(); ++i) {
      penalties.push_back(overlong_penalty(completion_tokens[i], max_completion_tokens,
                                           config.overlong_buffer_tokens));
      rewards.total[i] += config.overlong_factor * penalties.back();
    }
    rewards.names.emplace_back("overlong_penalty");
    rewards.weight.push_back(config.overlong_factor);
    rewards.by_name.push_back(std::move(penalties));
  }
  return rewards;
}

double kl_value(KlEstimator estimator, double d) {
  switch (estimator) {
    case KlEstimator::kK1:
    case KlEstimator::kK1Straight:
      return d;
    case KlEstimator::kAbs:
    case KlEstimator::kAbsStraight:
      return std::abs(d);
    case KlEstimator::kK2:
      return 0.5 * d * d;
    case KlEstimator::kK3:
    case KlEstimator::kK3Straight:
    case KlEstimator::kK3Score:
    case KlEstimator::kK3Unbiased:
      return std::expm1(-d) + d;
  }
  throw std::invalid_argument("unknown algorithm.kl_estimator");
}

double bounded_kl_value(const AlgorithmConfig& config, double d) {
  const bool bounded = config.k3_bound > 0 && has_k3_value(config.kl_estimator);
  const double d_inside = bounded ? std::clamp(d, -kMaxLogRatio, kMaxLogRatio) : d;
  const double k = kl_value(config.kl_estimator, d_inside);
  const double value = bounded ? std::min(k, config.k3_bound) : k;
  return config.kl_bound > 0 ? std::clamp(value, -config.kl_bound, config.kl_bound) : value;
}

StepAdvantages step_advantages(const StepColumns& table, const SampleRewards& rewards,
                               int64_t group_size, const AlgorithmConfig& config, double kl_coef) {
  check_samples(table, kAdvantages);
  check_rewards(table, rewards);
  StepAdvantages result;
  result.sample_score = sample_scores(table, rewards);
  const std::vector<double> kl = token_kl(table, config, kl_coef);
  result.kl = mean_kl(table, rewards, kl, config.kl_average);
  if (config.advantage.estimator == AdvantageEstimator::kReinforce) {
    result.advantage =
        discounted_sums(table, token_rewards(table, rewards, kl, kl_coef), config.advantage.gamma);
  } else if (config.advantage.estimator == AdvantageEstimator::kRemax) {
    result.advantage =
        discounted_sums(table, token_rewards(table, rewards, kl, kl_coef), /*decay=*/1.0);
    take_off_baselines(table, rewards, result.advantage);
  } else if (config.advantage.estimator == AdvantageEstimator::kOptimalTokenBaseline) {
    result.advantage =
        discounted_sums(table, token_rewards(table, rewards, kl, kl_coef), config.advantage.gamma);
    const auto baseline = optimal_token_baselines(table, result.advantage, group_size);
    for (std::size_t t = 0; t < baseline.size(); ++t) {
      result.advantage[t] -= baseline[t];
    }
  } else if (config.advantage.estimator == AdvantageEstimator::kGae) {
    gae(table, token_rewards(table, rewards, kl, kl_coef), config.advantage, result);
  } else {
    result.advantage = config.advantage.estimator == AdvantageEstimator::kGiven
                           ? given(table, config)
                           : by_sample(table, rewards, kl, group_size, config, kl_coef);
    take_off_later_kl(table, kl, config, kl_coef, result.advantage);
  }
  if (config.advantage.whiten != Whiten::kNone) {
    whiten(table, config.advantage, result.advantage);
  }
  if (distils_samples(config)) {
    add_distillation(table, config, result.advantage);
  }
  return result;
}

}  // namespace ringside::rl
