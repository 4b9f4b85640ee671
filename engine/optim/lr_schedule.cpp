#include "engine/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

namespace ringside::engine {
namespace {

void check(const LrSchedule& s, int64_t step) {
  const auto require = [](bool holds, const std::string& message) {
    if (!holds) {
      throw std::invalid_argument("learning rate schedule: " + message);
    }
  };
  require(step >= 0, "the step must not be negative, got " + std::to_string(step));
  require(s.peak >= 0, "the peak must not be negative, got " + std::to_string(s.peak));
  require(s.warmup_steps >= 0,
          "warmup_steps must not be negative, got " + std::to_string(s.warmup_steps));
  require(s.min_lr_ratio >= 0 && s.min_lr_ratio <= 1,
          "min_lr_ratio must be in [0, 1], got " + std::to_string(s.min_lr_ratio));
  require(s.decay == LrDecay::kConstant || s.total_steps > 0,
          "a decay needs positive total_steps, got " + std::to_string(s.total_steps));
}

}  // namespace

double LrSchedule::at_step(int64_t step) const {
  check(*this, step);
  if (step < warmup_steps) {
    return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  if (decay == LrDecay::kConstant) {
    return peak;
  }
  const int64_t decay_steps = std::max<int64_t>(1, total_steps - warmup_steps);
  const double progress =
      std::min(1.0, static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps));
  const double share = decay == LrDecay::kLinear
                           ? 1.0 - progress
                           : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return peak * (min_lr_ratio + (1.0 - min_lr_ratio) * share);
}

}  // namespace ringside::engine
