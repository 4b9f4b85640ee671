#include "rl/losses/covariance.h"

#include <algorithm>
#include <stdexcept>

namespace ringside::rl {
namespace {

double mean_of(std::span<const double> column) {
  double sum = 0.0;
  for (const double value : column) {
    sum += value;
  }
  return sum / static_cast<double>(column.size());
}

}  // namespace

std::vector<double> token_covariances(const ChoicePart& part) {
  if (part.advantage.size() != part.old.size()) {
    throw std::invalid_argument("token_covariances: " + std::to_string(part.advantage.size()) +
                                " advantages for " + std::to_string(part.old.size()) +
                                " log-probs");
  }
  std::vector<double> covariances;
  const double advantage = mean_of(part.advantage), logprob = mean_of(part.old);
  for (std::size_t t = 0; t < part.advantage.size(); ++t) {
    covariances.push_back((part.advantage[t] - advantage) * (part.old[t] - logprob));
  }
  return covariances;
}

std::vector<double> choose_first(const std::vector<std::size_t>& candidates, double share,
                                 std::size_t count) {
  const auto wanted =
      std::max<std::size_t>(1, static_cast<std::size_t>(share * static_cast<double>(count)));
  std::vector<double> chosen(count, 0.0);
  for (std::size_t i = 0; i < std::min(candidates.size(), wanted); ++i) {
    chosen.at(candidates[i]) = 1.0;
  }
  return chosen;
}

}  // namespace ringside::rl
