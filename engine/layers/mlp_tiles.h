// Tiles of an MLP's rows: what bounds the memory of its inner rows.
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

namespace ringside::engine {

// An MLP of some rows with the weights of a pass; each row's result depends on that row alone.
using RowsOfMlp = std::function<at::Tensor(const at::Tensor& x_sE, const LayerPass& pass)>;

// The MLP of all rows, in tiles as pass.tiles says. linears: all that the MLP uses. What `mlp` and
// `linears` refer to outlives the backward.
// Shapes: x_sE -> [s, E].
at::Tensor apply_mlp(const at::Tensor& x_sE, const LayerPass& pass,
                     const std::vector<const Linear*>& linears, const RowsOfMlp& mlp);

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
