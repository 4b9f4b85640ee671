#include "rl/algorithm/covariance_choice.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace ringside::rl {
namespace {

// SplitMix64 of a token's place: a random order that depends on nothing else.
uint64_t draw(uint64_t seed, uint64_t place) {
  uint64_t x = seed + (place + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

double mean_of(const std::vector<double>& column, const ChoicePart& part) {
  double sum = 0.0;
  for (int64_t t = part.begin; t < part.begin + part.count; ++t) {
    sum += column.at(t);
  }
  return sum / static_cast<double>(part.count);
}

}  // namespace

std::vector<double> token_covariances(const StepColumns& table, const ChoicePart& part) {
  std::vector<double> covariances;
  const double advantage = mean_of(table.advantage, part), logprob = mean_of(table.old, part);
  for (int64_t t = part.begin; t < part.begin + part.count; ++t) {
    covariances.push_back((table.advantage[t] - advantage) * (table.old[t] - logprob));
  }
  return covariances;
}

std::vector<double> choose_by_covariance(const StepColumns& table, const ChoicePart& part,
                                         const AlgorithmConfig& config) {
  if (!chooses_by_covariance(config.loss)) {
    throw std::invalid_argument("choose_by_covariance: algorithm.loss " +
                                std::string(to_string(config.loss)) + " chooses no tokens");
  }
  const bool clips = config.loss == PolicyLossName::kClipCov;
  const auto covariance = token_covariances(table, part);
  std::vector<int64_t> candidates;
  for (int64_t i = 0; i < part.count; ++i) {
    if (!clips || (covariance[i] > config.clip_cov.lb && covariance[i] < config.clip_cov.ub)) {
      candidates.push_back(i);
    }
  }
  const double share = clips ? config.clip_cov.ratio : config.kl_cov.ratio;
  const auto wanted =
      std::max<int64_t>(1, static_cast<int64_t>(share * static_cast<double>(part.count)));
  std::stable_sort(candidates.begin(), candidates.end(), [&](int64_t a, int64_t b) {
    return clips ? draw(part.seed, static_cast<uint64_t>(part.begin + a)) <
                       draw(part.seed, static_cast<uint64_t>(part.begin + b))
                 : covariance[a] > covariance[b];
  });
  std::vector<double> chosen(static_cast<std::size_t>(part.count), 0.0);
  const auto count = std::min<std::size_t>(candidates.size(), static_cast<std::size_t>(wanted));
  for (std::size_t i = 0; i < count; ++i) {
    chosen[static_cast<std::size_t>(candidates[i])] = 1.0;
  }
  return chosen;
}

}  // namespace ringside::rl
