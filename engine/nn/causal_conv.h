// Causal depthwise convolution over packed documents, followed by SiLU.
//
// Shapes: S = rows, c = channels, T = taps, r = runs, n = rows of other ranks, B = sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sp/layout/range.h"

namespace ringside::engine {

// Where the rows of each run, and the T - 1 rows before it, are taken from.
// Thread safety: immutable.
class ConvTables {
 public:
  // before: T - 1 entries for each run, oldest first: a row of the input, S + i for row i of other
  // ranks, or -1 for none, which reads zeros. The runs cover the input's rows once.
  // Blocks: until the tables are on the device.
  // Throws: c10::Error when taps are below 1, or the numbers of rows do not fit.
  ConvTables(const std::vector<sp::Range>& runs, const std::vector<int64_t>& before, int64_t taps,
             int64_t rows, c10::Device device);

  int64_t taps() const { return taps_; }
  int64_t rows() const { return rows_; }
  // With T - 1 rows before each run.
  int64_t padded_rows() const { return padded_rows_; }
  const at::Tensor& padded_row() const { return padded_row_; }  // [S] place of each row
  // Padded rows that are copies of rows of the input or of other ranks; undefined: none.
  const at::Tensor& copied_to() const { return copied_to_; }
  const at::Tensor& copied_from() const { return copied_from_; }

 private:
  int64_t taps_, rows_, padded_rows_ = 0;
  at::Tensor padded_row_, copied_to_, copied_from_;
};

// silu(y_t), where y_t = sum over j of weight_j x_(t - T + 1 + j). Summed in fp32, in fp64 for
// doubles. Differentiable once; the backward computes y again.
// Shapes: x_Sc, other_nc (undefined: n is 0), weight_cT; returns [S, c] in x's dtype.
// Throws: c10::Error on other shapes of x and weight, and on the CPU on too few rows in `other`.
at::Tensor causal_conv_silu(const at::Tensor& x_Sc, const at::Tensor& other_nc,
                            const at::Tensor& weight_cT,
                            const std::shared_ptr<const ConvTables>& tables);

// One row of each sequence, for generation: takes the T - 1 rows before it from state_BTc, which it
// then shifts by x_Bc. Not differentiable.
// Shapes: x_Bc, weight_cT, state [B, T - 1, c]; returns [B, c] in x's dtype.
at::Tensor causal_conv_silu_step(const at::Tensor& x_Bc, const at::Tensor& weight_cT,
                                 at::Tensor& state_BTc);

}  // namespace ringside::engine
