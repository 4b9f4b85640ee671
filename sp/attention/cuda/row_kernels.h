// CUDA row kernels of a ring step, without torch: raw device pointers, strides in elements and a
// stream. Every function accepts zero rows, zero heads and any head dim, indexes in 64 bits and
// returns the launch's error. The table of moves is on the device and is not checked; `rows` is the
// sum over its moves. No atomics: results are the same on every run, provided that no destination
// row is in two moves.
//
// Blocks: never; asynchronous on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "sp/attention/cuda/row_move.h"

namespace ringside::sp {

struct MoveTable {
  const RowMove* moves = nullptr;
  int64_t num_moves = 0;
  int64_t rows = 0;
};

enum class ElementType { kBFloat16, kFloat16, kFloat32 };

// Part results or gradients, [rows, heads, head_dim] with a dense last dim.
struct PartRows {
  const void* data = nullptr;
  ElementType type = ElementType::kFloat32;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
};

// A contiguous fp32 tensor [.., heads, head_dim]; the part's heads start at head_begin.
struct WholeRows {
  float* data = nullptr;
  int64_t heads = 0;
  int64_t head_begin = 0;
};

// A part's log-sum-exp, fp32 [rows, heads] of any strides, and its destination, a contiguous fp32
// tensor [.., heads of the whole].
struct LseRows {
  float* whole = nullptr;
  const float* part = nullptr;
  int64_t part_row_stride = 0;
  int64_t part_head_stride = 0;
};

// to[r'] = from[r] for each moved row of row_bytes bytes. Rows are dense in `to` and
// row_stride_bytes apart in `from`.
cudaError_t gather_rows_cuda(void* to, const void* from, int64_t row_bytes,
                             int64_t row_stride_bytes, const MoveTable& table, cudaStream_t stream);

// whole[to, head_begin + j] += part[from, j], in fp32.
cudaError_t add_rows_cuda(const WholeRows& whole, const PartRows& part, const MoveTable& table,
                          cudaStream_t stream);

// merge_rows_cuda merges the part into the whole by log-sum-exp (lse_merge.h), in fp32. It is safe
// for -inf on either side; where both are -inf, the row becomes zero with LSE -inf. write_rows_cuda
// overwrites the rows.
cudaError_t merge_rows_cuda(const WholeRows& whole, const PartRows& part, const LseRows& lse,
                            const MoveTable& table, cudaStream_t stream);
cudaError_t write_rows_cuda(const WholeRows& whole, const PartRows& part, const LseRows& lse,
                            const MoveTable& table, cudaStream_t stream);

}  // namespace ringside::sp
