// Element-wise work on tiles of scores in fp32, and their transposition. A tile holds a key in each
// row and a query in each column: all work runs down the columns, every column is a lane of a
// vector register. Compiled for AVX-512, for AVX2 and for neither; the processor chooses when the
// program starts.
//
// Shapes: K = rows (keys), w = columns (queries, at most kMaxWidth), D = head dim. The rows of a
// tile follow each other without a gap. Multiples of 16 are fast, other sizes are right. Thread
// safety: any thread, on memory of its own.
#pragma once

#include <cstdint>

namespace ringside::sp {

inline constexpr int64_t kMaxWidth = 64;

// Softmax of a row of queries over the key tiles seen so far. Products q k become scores when they
// are multiplied by the scale, which is positive.
struct OnlineSoftmax {
  float* highest_w;     // highest product of each query, -inf before the first
  float* sum_w;         // sum of exp(scale (product - highest))
  float* correction_w;  // out: what results so far are to be multiplied by
};

// Turns products into exp(scale (product - new highest)), and brings highest and sum up to date.
// -inf: hidden; a query without a visible key keeps highest -inf and sum 0. Source:
// FlashAttention-2 (Dao 2023), algorithm 1.
void softmax_step(float* products_Kw, int64_t keys, int64_t width, float scale,
                  const OnlineSoftmax& state);

// products_Kw: in: q k, -inf where hidden; out: p = exp(scale product - lse). dp_Kw: in: gradient
// of p; out: that of the scores, p (dp - delta). A query with lse +inf takes no part. Source:
// FlashAttention-2, algorithm 2.
void softmax_backward(float* products_Kw, float* dp_Kw, int64_t keys, int64_t width, float scale,
                      const float* lse_w, const float* delta_w);

// Multiplies column c by factor_w[c].
void scale_columns(float* tile_Dw, int64_t rows, int64_t width, const float* factor_w);

// out_n[i] = the sum over d of a[i * a_stride + d] * b[i * b_stride + d].
void row_products(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t rows,
                  int64_t head_dim, float* out_n);

// to[c * to_stride + r] = scale * from[r * from_stride + c] for r < rows and c < columns.
void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float scale,
               float* to, int64_t to_stride);

}  // namespace ringside::sp
