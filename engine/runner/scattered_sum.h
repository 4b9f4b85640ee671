// Sum of a unit's gradients over the ranks of its shard, where each rank receives its own range.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "engine/params/shard_gather.h"
#include "sp/mesh/communicator.h"

namespace ringside::engine {

// Shapes: n = elements of the unit, m = this rank's elements.
class ScatteredSum {
 public:
  // Starts sending gradient_n in the dtype `wire`: every rank gets its range from all others.
  // Collective over: the shard.
  ScatteredSum(const ShardGather& cut, const at::Tensor& gradient_n, at::ScalarType wire);

  // The sum [m] in the gradient's dtype, over the ranks in the order of their numbers.
  // Blocks: until the ranges are there; on CUDA only the current stream waits.
  at::Tensor wait();

 private:
  int64_t own_;
  at::ScalarType dtype_;
  at::Tensor received_;
  std::unique_ptr<sp::Transfer> transfer_;
};

}  // namespace ringside::engine
