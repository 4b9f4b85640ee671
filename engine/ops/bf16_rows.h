// Norms, rotations and gates of bf16 rows on the CPU, each in one pass over its operands. ATen's
// operators, of which the other dtypes' are made, would read and write them four to ten times.
// Sums are in fp32, and a result is rounded once unless its formula says otherwise. The work is
// spread over at::get_num_threads(); bits do not depend on their number.
//
// Shapes: rows = s; every row is dense, of `size` elements. Pointers are to bf16 as 16-bit words
// (Bf16Word) and to fp32. Thread safety: any thread, on memory of its own.
// Source of the formulas: rms_norm_rows.h, qk_norm_rope_rows.h and gated_activation_rows.h, which
// the CUDA kernels compute.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>

namespace ringside::engine::bf16 {

using Bf16Word = uint16_t;

// Whether these functions take the tensors: bf16 on the CPU, without gaps. Undefined ones count as
// taken.
bool takes(std::initializer_list<at::Tensor> tensors);

// The tensor's elements; nullptr if it is undefined.
inline const Bf16Word* words(const at::Tensor& x) {
  return x.defined() ? static_cast<const Bf16Word*>(x.const_data_ptr()) : nullptr;
}
// The same to be written.
inline Bf16Word* words_to_write(const at::Tensor& x) {
  return x.defined() ? static_cast<Bf16Word*>(x.mutable_data_ptr()) : nullptr;
}

// Rows of a norm of x, or of sum = x + branch. y = round(x rstd) weight; with plus_one
// y = x rstd (1 + weight).
struct NormRows {
  const Bf16Word* x;
  const Bf16Word* branch;  // nullptr: none
  const Bf16Word* weight;  // [size]
  Bf16Word* sum;           // x + branch; not read without a branch
  Bf16Word* y;
  float* rstd;  // [rows]
  int64_t rows;
  int64_t size;
  float eps;
  bool plus_one;
};

// Writes sum, y and rstd.
void norm(const NormRows& n);

// Rows of a norm's gradient: with g = dy weight and n = x rstd, dx = rstd (g - n mean(g n)) + d_sum
// and d_weight = sum over rows of dy n.
struct NormGradientRows {
  const Bf16Word* dy;
  const Bf16Word* x;
  const Bf16Word* weight;
  const Bf16Word* d_sum;  // nullptr: none
  const float* rstd;
  Bf16Word* dx;
  float* d_weight;  // [size]
  int64_t rows;
  int64_t size;
  bool plus_one;
};

// Writes dx and d_weight. Sums d_weight over blocks of 64 rows, then over the blocks.
void norm_gradient(const NormGradientRows& n);

// Heads of tokens, which lie `token_stride` elements apart; those of a token follow each other.
struct Heads {
  const Bf16Word* data;
  int64_t token_stride;
  int64_t count;
};

// Rotates the pairs (i, i + half) of each head: y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin; with
// `sign` -1 backwards.
// Shapes: cos and sin [s, half]; y: rows of the same number of heads, y_stride elements apart.
void rotate(const Heads& x, const Bf16Word* cos, const Bf16Word* sin, float sign, int64_t tokens,
            int64_t half, Bf16Word* y, int64_t y_stride);

// out = silu(gate) up of [gate | up], f elements each.
void swiglu(const Bf16Word* gate_up, int64_t rows, int64_t f, Bf16Word* out);

// [d gate | d up] for the gradient dy of out.
void swiglu_gradient(const Bf16Word* dy, const Bf16Word* gate_up, int64_t rows, int64_t f,
                     Bf16Word* d_gate_up);

}  // namespace ringside::engine::bf16
