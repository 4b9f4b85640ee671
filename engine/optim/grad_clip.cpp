#include "engine/optim/grad_clip.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

namespace ringside::engine {

at::Tensor global_grad_norm(std::span<ParamUnit* const> units) {
  TORCH_CHECK(!units.empty(), "global_grad_norm of no parameter unit");
  const at::NoGradGuard no_grad;
  // Squares of the units that are spread over the same groups.
  struct Squares {
    std::vector<sp::Communicator*> groups;
    at::Tensor sum;
  };
  std::vector<Squares> parts;
  for (const ParamUnit* unit : units) {
    const at::Tensor norm = at::linalg_vector_norm(unit->grad(), 2, at::OptionalIntArrayRef(),
                                                   /*keepdim=*/false, at::kDouble)
                                .to(unit->storage().context().device);
    const auto groups = unit->storage().spread();
    auto part = std::ranges::find(parts, groups, &Squares::groups);
    if (part == parts.end()) {
      part = parts.insert(part, {groups, at::zeros_like(norm)});
    }
    part->sum = part->sum + norm * norm;
  }
  at::Tensor sum = at::zeros_like(parts.front().sum);
  for (Squares& part : parts) {
    for (sp::Communicator* group : part.groups) {
      group->all_reduce_sum(part.sum, "gradient norm");
    }
    sum = sum + part.sum;
  }
  return sum.sqrt();
}

at::Tensor clip_scale(const at::Tensor& norm, double max_norm) {
  TORCH_CHECK(max_norm >= 0, "clip_scale: max_norm must not be negative, got ", max_norm);
  if (max_norm == 0) {
    return at::ones_like(norm);
  }
  return (max_norm / (norm + 1e-6)).clamp_max(1.0);
}

}  // namespace ringside::engine
