// Rows read and written by a batch of equally sized blocks. Contiguous and evenly spaced rows are
// views; others are gathered.
//
// Shapes: S = rows of a ring share, B = blocks of the batch, n = rows of a block, "..." = any
// further dims.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ringside::sp {

class RowSelection {
 public:
  // begins: [B] first row of each block, B >= 1. Each block has `rows` >= 1 rows. Blocks may repeat
  // or overlap.
  // Throws: c10::Error when there is no block or no row.
  RowSelection(const std::vector<int64_t>& begins, int64_t rows);

  // [S, ...] -> [B, n, ...]; a view where the rows are evenly spaced.
  at::Tensor gather(const at::Tensor& share) const;

  // share[rows] += values. Rows that are in several blocks receive the sum.
  // Shapes: values [B, n, ...].
  void add(at::Tensor& share, const at::Tensor& values) const;

 private:
  at::Tensor view(const at::Tensor& share) const;

  int64_t num_blocks_;
  int64_t rows_;
  int64_t first_;
  // Rows between the beginnings of neighbouring blocks, when even and without overlap.
  int64_t spacing_;
  at::Tensor index_;  // [B * n], only where they are not evenly spaced
};

}  // namespace ringside::sp
