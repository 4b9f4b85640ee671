#include "engine/models/gated_mlp.h"

#include <ATen/ATen.h>

#include "engine/nn/linear.h"
#include "engine/nn/swiglu.h"
#include "engine/nn/tiles.h"

namespace ringside::engine {
namespace {

// What the gradients of the MLP's weights arrive at, adapters included; undefined ones among them.
std::vector<at::Tensor> mlp_leaves(const LayerWeights& weights) {
  std::vector<at::Tensor> leaves{weights.gate_up_bias.leaf, weights.down_bias.leaf};
  for (const Weight* weight : {&weights.gate_up_weight, &weights.down_weight}) {
    leaves.push_back(weight->leaf);
    if (weight->low_rank) {
      leaves.push_back(weight->low_rank->a_leaf);
      for (const LowRank::Part& part : weight->low_rank->parts) {
        leaves.push_back(part.b_leaf);
      }
    }
  }
  return leaves;
}

}  // namespace

std::vector<LayerPart> gated_mlp_parts(const ModelConfig& config) {
  const int64_t e = config.hidden_size, f = config.intermediate_size;
  std::vector<LayerPart> parts{
      {&LayerWeights::gate_up_weight,
       {2 * f, e},
       {{"mlp.gate_proj.weight", {f, e}}, {"mlp.up_proj.weight", {f, e}}}}};
  if (config.mlp_bias) {
    parts.push_back({&LayerWeights::gate_up_bias,
                     {2 * f},
                     {{"mlp.gate_proj.bias", {f}}, {"mlp.up_proj.bias", {f}}}});
  }
  parts.push_back(single_part(&LayerWeights::down_weight, "mlp.down_proj.weight", {e, f}));
  if (config.mlp_bias) {
    parts.push_back(single_part(&LayerWeights::down_bias, "mlp.down_proj.bias", {e}));
  }
  return parts;
}

at::Tensor gated_mlp(const ModelConfig& config, const LayerWeights& weights,
                     const at::Tensor& normed_sE, MlpTiles tiles) {
  const auto rows = [weights, activation = config.activation](const at::Tensor& x) {
    const at::Tensor gate_up = apply_linear(x, weights.gate_up_weight, weights.gate_up_bias);
    const at::Tensor product =
        activation == GateActivation::kGeluTanh ? geglu(gate_up) : swiglu(gate_up);
    return apply_linear(product, weights.down_weight, weights.down_bias);
  };
  if (tiles.rows == 0) {
    return rows(normed_sE);
  }
  return tiles.value_read
             ? apply_in_tiles(normed_sE, tiles.rows, rows)
             : gradient_path_in_tiles(normed_sE, tiles.rows, mlp_leaves(weights), rows);
}

}  // namespace ringside::engine
