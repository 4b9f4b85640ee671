// CUDA row kernels of a ring step, without torch: raw device pointers, strides in elements and a
// stream. Every function accepts zero rows, zero heads and any head dim, indexes in 64 bits and
// returns the launch's error. Tables are on the device and are not checked; `rows` is the sum over
// a table's moves or sums. No atomics: results are the same on every run, provided that no
// destination row is in two moves or sums.
//
// Blocks: never; asynchronous on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "sp/attention/cuda/row_move.h"

namespace ringside::sp {

// Row moves on the device, ordered by `first`.
struct MoveTable {
  const RowMove* moves = nullptr;
  int64_t num_moves = 0;
  int64_t rows = 0;
};

// Row sums on the device, ordered by `first`.
struct SumTable {
  const RowSum* sums = nullptr;
  int64_t num_sums = 0;
  const int64_t* sources = nullptr;
  int64_t rows = 0;
};

// Dtypes of a part.
enum class ElementType { kBFloat16, kFloat16, kFloat32, kFloat64 };

// Part results or gradients, [rows, heads, head_dim] with a dense last dim.
struct PartRows {
  const void* data = nullptr;
  ElementType type = ElementType::kFloat32;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
};

// A contiguous tensor [.., heads, head_dim] in fp32, or in fp64 where the part is; the part's heads
// start at head_begin.
struct WholeRows {
  void* data = nullptr;
  int64_t heads = 0;
  int64_t head_begin = 0;
};

// A part's log-sum-exp, [rows, heads] of any strides, and its destination, a contiguous tensor
// [.., heads of the whole]; both in the dtype of the whole.
struct LseRows {
  void* whole = nullptr;
  const void* part = nullptr;
  int64_t part_row_stride = 0;
  int64_t part_head_stride = 0;
};

// to[r'] = from[r] for each moved row of row_bytes bytes. Rows are dense in `to` and
// row_stride_bytes apart in `from`.
cudaError_t gather_rows_cuda(void* to, const void* from, int64_t row_bytes,
                             int64_t row_stride_bytes, const MoveTable& table, cudaStream_t stream);

// whole[to, head_begin + j] += the sum of part[from, j] over the row's sources, in their order, in
// the dtype of the whole.
cudaError_t add_rows_cuda(const WholeRows& whole, const PartRows& part, const SumTable& table,
                          cudaStream_t stream);

// merge_rows_cuda merges the part into the whole by log-sum-exp (lse_merge.h). It is safe
// for -inf on either side; where both are -inf, the row becomes zero with LSE -inf. write_rows_cuda
// overwrites the rows.
cudaError_t merge_rows_cuda(const WholeRows& whole, const PartRows& part, const LseRows& lse,
                            const MoveTable& table, cudaStream_t stream);
cudaError_t write_rows_cuda(const WholeRows& whole, const PartRows& part, const LseRows& lse,
                            const MoveTable& table, cudaStream_t stream);

}  // namespace ringside::sp
