#include "engine/layers/mlp_tiles.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "engine/nn/tiles.h"

namespace ringside::engine {

at::Tensor apply_mlp(const at::Tensor& x_sE, const LayerPass& pass,
                     const std::vector<const Linear*>& linears, const RowsOfMlp& mlp) {
  if (pass.tiles.rows == 0) {
    return mlp(x_sE, pass);
  }
  const bool differentiated = at::GradMode::is_enabled();
  at::Tensor value;
  if (pass.tiles.value_read) {
    const at::NoGradGuard no_grad;
    value =
        apply_in_tiles(x_sE, pass.tiles.rows, [&](const at::Tensor& x) { return mlp(x, pass); });
    if (!differentiated) {
      return value;
    }
  }
  std::vector<at::Tensor> leaves;
  for (const Linear* linear : linears) {
    linear->append_leaves(pass, leaves);
  }
  // The backward runs the rows, when the pass is over.
  const std::vector<Weight> weights(pass.weights.begin(), pass.weights.end());
  const auto rows = [mlp, weights, pass](const at::Tensor& x) {
    LayerPass of_tile = pass;
    of_tile.weights = weights;
    return mlp(x, of_tile);
  };
  const at::Tensor path = gradient_path_in_tiles(x_sE, pass.tiles.rows, leaves, rows);
  return value.defined() ? path + value : path;
}

TiledRows tiled_rows(const MixerShape& shape, int64_t hidden) {
  const int64_t s = shape.tokens;
  if (shape.mlp_tile_tokens == 0) {
    return {s};
  }
  const int64_t rows = std::min(shape.mlp_tile_tokens, s);
  return {rows, (s + 2 * rows) * hidden, /*tiled=*/true};
}

}  // namespace ringside::engine
