// A function of rows computed over tiles of rows, so that its intermediate results never exist for
// all rows at once.
//
// Throws: c10::Error unless x is [s, E] and tile_rows above 0.
// Source: Bekman et al. 2025 (tiled MLP).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace ringside::engine {

// rows(x) for the rows of x_sE, at most tile_rows > 0 at a time, the last tile ragged. The function
// treats each row by itself and maps a width to the same width.
using RowFunction = std::function<at::Tensor(const at::Tensor& x_tE)>;

// The value, without autograd: like x.
at::Tensor apply_in_tiles(const at::Tensor& x_sE, int64_t tile_rows, const RowFunction& rows);

// The gradient path alone, for a recomputation whose value nobody reads: zeros with x's shape,
// whose backward computes rows() with autograd, tile by tile. Gradients flow to x_sE and to those
// of `leaves` that require one; each leaf's gradient is summed over the tiles in the leaf's dtype.
// No rows: one empty tile, so that every leaf gets a gradient.
at::Tensor gradient_path_in_tiles(const at::Tensor& x_sE, int64_t tile_rows,
                                  std::vector<at::Tensor> leaves, RowFunction rows);

}  // namespace ringside::engine
