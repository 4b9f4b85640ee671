#include "engine/optim/grad_clip.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace ringside::engine {

at::Tensor global_grad_norm(std::span<ParamUnit* const> units) {
  TORCH_CHECK(!units.empty(), "global_grad_norm of no parameter unit");
  const at::NoGradGuard no_grad;
  at::Tensor of_whole, of_shards;
  sp::Communicator* shard = nullptr;
  for (const ParamUnit* unit : units) {
    const at::Tensor norm = at::linalg_vector_norm(unit->grad(), 2, at::OptionalIntArrayRef(),
                                                   /*keepdim=*/false, at::kDouble)
                                .to(unit->context().device);
    at::Tensor& sum = unit->is_sharded() ? of_shards : of_whole;
    sum = sum.defined() ? sum + norm * norm : norm * norm;
    shard = unit->is_sharded() ? unit->gather()->sharding().shard.get() : shard;
  }
  if (shard == nullptr) {
    return of_whole.sqrt();
  }
  shard->all_reduce_sum(of_shards, "gradient norm");
  return (of_whole.defined() ? of_whole + of_shards : of_shards).sqrt();
}

at::Tensor clip_scale(const at::Tensor& norm, double max_norm) {
  TORCH_CHECK(max_norm >= 0, "clip_scale: max_norm must not be negative, got ", max_norm);
  if (max_norm == 0) {
    return at::ones_like(norm);
  }
  return (max_norm / (norm + 1e-6)).clamp_max(1.0);
}

}  // namespace ringside::engine
