#include "engine/optim/grad_clip.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

namespace ringside::engine {

double global_grad_norm(std::span<ParamUnit* const> units) {
  double sum_of_squares = 0;
  for (const ParamUnit* unit : units) {
    const double norm = at::linalg_vector_norm(unit->grad(), 2, at::OptionalIntArrayRef(),
                                               /*keepdim=*/false, at::kDouble)
                            .item<double>();
    sum_of_squares += norm * norm;
  }
  return std::sqrt(sum_of_squares);
}

double clip_grad_norm(std::span<ParamUnit* const> units, double max_norm) {
  TORCH_CHECK(max_norm > 0, "clip_grad_norm: max_norm must be positive, got ", max_norm);
  const double norm = global_grad_norm(units);
  const double scale = max_norm / (norm + 1e-6);
  if (std::isfinite(norm) && scale < 1) {
    const at::NoGradGuard no_grad;
    for (const ParamUnit* unit : units) {
      unit->grad().mul_(scale);
    }
  }
  return norm;
}

}  // namespace ringside::engine
