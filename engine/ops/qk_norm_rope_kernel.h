// CUDA kernels of norm and rotation of heads. kernel_types.h says what holds for all launchers.
#pragma once

#include "engine/ops/kernel_types.h"

namespace ringside::engine {

// A tensor [s, heads, D] with a dense last dim.
struct HeadTensor {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t heads = 0;
};

// Sizes of a call of qk_norm_rope.
struct HeadShape {
  int64_t tokens = 0;
  int64_t head_dim = 0;
  int64_t query_heads = 0;
  int64_t key_heads = 0;
};

// Undefined norms are nullptr. rstd is [tokens, query_heads + key_heads] in acc; cos and sin are
// [tokens, head_dim / 2].
struct RotationArgs {
  HeadShape shape;
  const void* q_norm = nullptr;
  const void* k_norm = nullptr;
  const void* cos = nullptr;
  const void* sin = nullptr;
  void* rstd = nullptr;
  double eps = 0.0;
  bool plus_one = false;
};
// operators::qk_norm_rope.
cudaError_t qk_norm_rope_cuda(const Types& types, const RotationArgs& args, const HeadTensor& heads,
                              const HeadTensor& qk, cudaStream_t stream);

// Gradients from outside, the heads, and the gradients of heads and norms.
struct HeadGradArgs {
  HeadTensor dq, dk, dv;
  HeadTensor heads;
  HeadTensor d_heads;
  void* partial = nullptr;  // [norm_grad_blocks(tokens * heads), 2 * head_dim] in acc
  void* d_norms = nullptr;  // [2, head_dim], in the wider of the two types
};
// operators::qk_norm_rope_backward, in two kernels, or one without norms. With norms head_dim is
// limited by a block's shared memory: 768 in fp32 sums, half of that in fp64.
cudaError_t qk_norm_rope_backward_cuda(const Types& types, const RotationArgs& args,
                                       const HeadGradArgs& grads, cudaStream_t stream);

}  // namespace ringside::engine
