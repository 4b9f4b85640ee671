// CUDA kernels of the decoder's operators, without tensors: raw device pointers, sizes and strides
// in elements, and a stream. Every function accepts zero rows, indexes in 64 bits and returns the
// launch's error, or cudaErrorInvalidValue for a size over its limit. Pointers, shapes and targets
// are not checked. No atomics, and a number of blocks that depends on the sizes alone: results are
// the same on every run and on every GPU.
//
// Shapes: as in engine/nn/operators.h. acc = the dtype of sums (Types::acc).
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
// 12288 in fp32 sums, half of that in fp64.
cudaError_t rms_norm_backward_cuda(const Types& types, const NormGradArgs& args,
                                   cudaStream_t stream);

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

// operators::swiglu and its gradient. f: the MLP's size.
cudaError_t swiglu_cuda(const Types& types, const void* gate_up, void* out, int64_t rows, int64_t f,
                        cudaStream_t stream);
cudaError_t swiglu_backward_cuda(const Types& types, const void* dy, const void* gate_up,
                                 void* d_gate_up, int64_t rows, int64_t f, cudaStream_t stream);

// Rows of contiguous logits; all other arrays have one element a row, in acc.
struct ScoreArgs {
  void* logits = nullptr;
  const int64_t* targets = nullptr;
  const void* temperature = nullptr;
  int64_t rows = 0;
  int64_t vocab = 0;
};
// operators::token_scores.
cudaError_t token_scores_cuda(const Types& types, const ScoreArgs& args, void* logprobs,
                              void* entropy, void* lse, cudaStream_t stream);

// Results of token_scores and their gradients, one element a row, in acc.
struct ScoreGrads {
  const void* lse = nullptr;
  const void* entropy = nullptr;
  const void* g_logprobs = nullptr;
  const void* g_entropy = nullptr;  // nullptr: zero
};
// operators::token_scores_backward. Writes the gradient in place of the logits.
cudaError_t token_scores_backward_cuda(const Types& types, const ScoreArgs& args,
                                       const ScoreGrads& grads, cudaStream_t stream);

}  // namespace ringside::engine
