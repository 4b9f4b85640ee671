// What the launchers of all CUDA kernels of operators have in common (NAME_kernel.h declares those
// of an operator): raw device pointers, sizes and strides in elements, and a stream. Every launcher
// accepts zero rows, indexes in 64 bits and returns the launch's error, or cudaErrorInvalidValue
// for a size over its limit. Pointers, shapes and targets are not checked. No atomics, and a number
// of blocks that depends on the sizes alone: results are the same on every run and on every GPU.
//
// Shapes: as in NAME.h. acc = the dtype of sums (Types::acc).
// Blocks: never; asynchronous on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ringside::engine {

// Dtypes of the tensors.
enum class Element { kBFloat16, kHalf, kFloat, kDouble };

// Dtype of the tensors, and whether sums of doubles are in fp32 (a norm with in_fp32).
struct Types {
  Element element = Element::kFloat;
  bool sums_in_fp32 = false;
};

}  // namespace ringside::engine
