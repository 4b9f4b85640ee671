// Tiles of an MLP's rows, which bound the memory of its inner rows, and the parts of its width that
// tensor-parallel ranks have.
//
// Shapes: s = tokens, E = hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/layers/cost.h"
#include "engine/layers/layer_pass.h"
#include "engine/layers/linear.h"
#include "engine/params/tensor_cut.h"

namespace ringside::engine {

// An MLP of some rows with the weights of a pass; each row's result depends on that row alone.
using RowsOfMlp = std::function<at::Tensor(const at::Tensor& x_sE, const LayerPass& pass)>;

// The MLP of all rows, in tiles as pass.tiles says. linears: all that the MLP uses. What `mlp` and
// `linears` refer to outlives the backward.
// Shapes: x_sE -> [s, E].
at::Tensor apply_mlp(const at::Tensor& x_sE, const LayerPass& pass,
                     const std::vector<const Linear*>& linears, const RowsOfMlp& mlp);

// Columns of the inner rows that each tensor rank has: units of 8, which kernels want. Empty where
// there is one rank.
std::vector<sp::Range> mlp_columns(int64_t size, const TensorPlace& place);

// Cuts of the projections to and from the inner rows; none for no columns.
TensorCut own_outputs_cut(const std::vector<sp::Range>& columns_of);
TensorCut own_inputs_cut(const std::vector<sp::Range>& columns_of);

// This rank's columns; `size` for no columns.
int64_t own_columns(int64_t size, const std::vector<sp::Range>& columns_of,
                    const TensorPlace& place);

// Rows of an MLP's backward that exist at a time, for its cost().
struct TiledRows {
  int64_t rows = 0;  // of a tile, or all
  // Of a tile's inputs and outputs, beside those of all rows; 0 without tiles.
  int64_t elements = 0;
  bool tiled = false;
};
// hidden: size of a row that goes in, and of one that comes out.
TiledRows tiled_rows(const MixerShape& shape, int64_t hidden);

}  // namespace ringside::engine
