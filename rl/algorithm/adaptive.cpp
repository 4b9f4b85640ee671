#include "rl/algorithm/adaptive.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ringside::rl {
namespace {

void check_finite(double value, const char* what) {
  if (!std::isfinite(value)) {
    throw std::invalid_argument(std::string(what) + " is " + std::to_string(value));
  }
}

}  // namespace

double next_kl_coef(double coef, double kl, int64_t samples, const AlgorithmConfig& config) {
  if (config.kl_target == 0.0) {
    return coef;
  }
  check_finite(kl, "next_kl_coef: the observed KL");
  if (samples < 0) {
    throw std::invalid_argument("next_kl_coef: observed on " + std::to_string(samples) +
                                " samples");
  }
  const double error = std::clamp(kl / config.kl_target - 1.0, -0.2, 0.2);
  const double share =
      std::min(1.0, static_cast<double>(samples) / static_cast<double>(config.kl_horizon));
  return coef * (1.0 + error * share);
}

double next_entropy_coef(double coef, double entropy, const AlgorithmConfig& config) {
  if (config.entropy_target == 0.0) {
    return coef;
  }
  check_finite(entropy, "next_entropy_coef: the observed entropy");
  const bool low = entropy <= config.entropy_target;
  return std::max(0.0, coef + (low ? config.entropy_step : -config.entropy_step));
}

double acting_entropy_coef(double coef, double entropy, const AlgorithmConfig& config) {
  return config.entropy_target > 0.0 && entropy > config.entropy_target ? 0.0 : coef;
}

}  // namespace ringside::rl
