#include "rl/data/sample_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

#include "rl/data/data_order.h"

namespace ringside::rl {
namespace {

constexpr double kLeast = 1e-8;  // added to every weight, so that some sample can be drawn

// The weight of each sample in a draw.
std::vector<double> draw_weights(std::span<const double> scores, const std::vector<bool>& drawable,
                                 const ResamplingConfig& config) {
  double highest = -INFINITY, lowest = INFINITY;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    highest = drawable[i] ? std::max(highest, scores[i]) : highest;
    lowest = drawable[i] ? std::min(lowest, scores[i]) : lowest;
  }
  std::vector<double> weights;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    double weight = 0.0;
    if (config.method == "pow") {
      weight = std::pow(std::abs(scores[i]), config.power);
    } else if (config.method == "max_min") {
      weight = scores[i] == highest || scores[i] == lowest ? 1.0 : 0.0;
    } else if (config.method == "max_random") {
      weight = scores[i] == highest ? 0.4 : 0.1;
    } else {
      throw std::invalid_argument("unknown algorithm.resampling.method " + config.method);
    }
    weights.push_back(drawable[i] ? weight + kLeast : 0.0);
  }
  return weights;
}

std::vector<int64_t> every_sample(std::size_t count) {
  std::vector<int64_t> all(count);
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

}  // namespace

std::vector<int64_t> drawn_samples(std::span<const double> scores,
                                   const std::vector<bool>& drawable,
                                   const ResamplingConfig& config, uint64_t seed) {
  if (config.method == "none" || std::ranges::count(drawable, true) == 0) {
    return every_sample(drawable.size());
  }
  if (scores.size() != drawable.size()) {
    throw std::invalid_argument("resampling: " + std::to_string(scores.size()) + " scores of " +
                                std::to_string(drawable.size()) + " samples");
  }
  std::vector<double> sums = draw_weights(scores, drawable, config);
  std::partial_sum(sums.begin(), sums.end(), sums.begin());
  std::mt19937_64 rng(seed);
  std::vector<int64_t> drawn;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    // 53 random bits: below 1, so the place is below the last sum.
    const double at = static_cast<double>(rng() >> 11) * 0x1p-53 * sums.back();
    drawn.push_back(std::ranges::upper_bound(sums, at) - sums.begin());
  }
  return drawn;
}

std::vector<int64_t> pass_order(std::vector<int64_t> drawn, bool shuffle, uint64_t seed) {
  if (shuffle) {
    shuffle_items(drawn, seed);
  }
  return drawn;
}

bool critic_has_own_passes(const Config& config) {
  const CriticConfig& critic = config.algorithm.critic;
  return config.algorithm.advantage.estimator == AdvantageEstimator::kGae &&
         (critic.num_iterations > 0 || critic.num_mini_batches > 0);
}

bool rearranges(const Config& config) {
  const int64_t of_critic = config.algorithm.critic.num_mini_batches;
  return config.train.shuffle_mini_batches || config.algorithm.resampling.method != "none" ||
         (critic_has_own_passes(config) && of_critic > 0 &&
          of_critic != config.train.num_mini_batches);
}

}  // namespace ringside::rl
