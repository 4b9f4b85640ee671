// The rows that a batch of equally sized blocks reads and writes: contiguous and evenly spaced rows
// are views, anything else is gathered. Shapes: S = rows of a ring share, B = blocks of the batch,
// n = rows of a block, "..." = any further dims.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ringside::sp {

class RowSelection {
 public:
  // begins: [B] first row of each block, B >= 1; rows >= 1 rows each. Blocks may repeat or overlap.
  RowSelection(const std::vector<int64_t>& begins, int64_t rows);

  // [S, ...] -> [B, n, ...]; a view where the rows are evenly spaced.
  at::Tensor gather(const at::Tensor& share) const;

  // share[rows] += values, values [B, n, ...]. Rows that stand in several blocks receive the sum.
  void add(at::Tensor& share, const at::Tensor& values) const;

 private:
  at::Tensor view(const at::Tensor& share) const;

  int64_t num_blocks_;
  int64_t rows_;
  int64_t first_;
  int64_t spacing_;   // rows between the beginnings of neighbouring blocks, when even and without
                      // overlap
  at::Tensor index_;  // [B * n], only where they are not evenly spaced
};

}  // namespace ringside::sp
