// CUDA kernels of the norm and its gradient. kernel_types.h says what holds for all launchers.
#pragma once

#include "engine/ops/kernel_types.h"

namespace ringside::engine {

// Norm of `rows` contiguous rows of `size` elements. With a branch, sum = x + branch is written and
// normed.
struct NormArgs {
  const void* x = nullptr;
  const void* branch = nullptr;  // nullptr: none
  const void* weight = nullptr;
  void* sum = nullptr;
  void* y = nullptr;
  void* rstd = nullptr;  // [rows] in acc
  int64_t rows = 0;
  int64_t size = 0;
  double eps = 0.0;
  bool plus_one = false;
};
// operators::rms_norm; with a branch add_rms_norm.
cudaError_t rms_norm_cuda(const Types& types, const NormArgs& args, cudaStream_t stream);

// Sums of a weight's gradient before the last addition: rows of a buffer in acc, one a block of
// threads. norm_grad_blocks() says how many rows.
int64_t norm_grad_blocks(int64_t items);

// As NormArgs, for the gradients.
struct NormGradArgs {
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* rstd = nullptr;
  const void* d_sum = nullptr;  // nullptr: none
  void* dx = nullptr;
  void* partial = nullptr;   // [norm_grad_blocks(rows), size] in acc
  void* d_weight = nullptr;  // [size], in the wider of the two types
  int64_t rows = 0;
  int64_t size = 0;
  bool plus_one = false;
};
// operators::rms_norm_backward, in two kernels. The size is limited by a block's shared memory:
// 12256 in fp32 sums, 6112 in fp64.
cudaError_t rms_norm_backward_cuda(const Types& types, const NormGradArgs& args,
                                   cudaStream_t stream);

}  // namespace ringside::engine
