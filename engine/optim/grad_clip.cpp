#include "engine/optim/grad_clip.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace ringside::engine {

at::Tensor global_grad_norm(std::span<ParamUnit* const> units) {
  TORCH_CHECK(!units.empty(), "global_grad_norm of no parameter unit");
  const at::NoGradGuard no_grad;
  at::Tensor sum_of_squares;
  for (const ParamUnit* unit : units) {
    const at::Tensor norm = at::linalg_vector_norm(unit->grad(), 2, at::OptionalIntArrayRef(),
                                                   /*keepdim=*/false, at::kDouble);
    sum_of_squares = sum_of_squares.defined() ? sum_of_squares + norm * norm : norm * norm;
  }
  return sum_of_squares.sqrt();
}

at::Tensor clip_scale(const at::Tensor& norm, double max_norm) {
  TORCH_CHECK(max_norm >= 0, "clip_scale: max_norm must not be negative, got ", max_norm);
  if (max_norm == 0) {
    return at::ones_like(norm);
  }
  return (max_norm / (norm + 1e-6)).clamp_max(1.0);
}

}  // namespace ringside::engine
