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

std::vector<sp::Range> mlp_columns(int64_t size, const TensorPlace& place) {
  constexpr int64_t kUnit = 8;
  return place.ranks == 1 ? std::vector<sp::Range>{} : even_units(size, kUnit, place.ranks);
}

TensorCut own_outputs_cut(const std::vector<sp::Range>& columns_of) {
  return columns_of.empty() ? TensorCut{} : cut_items(CutAlong::kRows, columns_of);
}

TensorCut own_inputs_cut(const std::vector<sp::Range>& columns_of) {
  return columns_of.empty() ? TensorCut{} : cut_items(CutAlong::kColumns, columns_of);
}

int64_t own_columns(int64_t size, const std::vector<sp::Range>& columns_of,
                    const TensorPlace& place) {
  return columns_of.empty() ? size : columns_of[place.rank].size();
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
