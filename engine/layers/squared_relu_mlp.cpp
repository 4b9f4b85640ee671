#include "engine/layers/squared_relu_mlp.h"

#include <ATen/ATen.h>

#include "engine/layers/mlp_tiles.h"

namespace ringside::engine {
namespace {

Bias bias(const ModelConfig& config) { return config.mlp_bias ? Bias::kAll : Bias::kNone; }

}  // namespace

SquaredReluMlp::SquaredReluMlp(const ModelConfig& config, ParamTable& table)
    : SquaredReluMlp(config, table, mlp_columns(config.intermediate_size, table.place())) {}

SquaredReluMlp::SquaredReluMlp(const ModelConfig& config, ParamTable& table,
                               const std::vector<sp::Range>& columns_of)
    : hidden_(config.hidden_size),
      size_(own_columns(config.intermediate_size, columns_of, table.place())),
      up_(table, {{"mlp.up_proj", config.intermediate_size, own_outputs_cut(columns_of)}}, hidden_,
          bias(config)),
      down_(table, {{"mlp.down_proj", hidden_, own_inputs_cut(columns_of)}},
            config.intermediate_size, bias(config)) {}

at::Tensor SquaredReluMlp::forward(const at::Tensor& normed_sE, const LayerPass& pass) const {
  const at::Tensor partial =
      apply_mlp(gather_rows(normed_sE, pass.rows), pass, {&up_, &down_},
                [this](const at::Tensor& x_sE, const LayerPass& of_tile) {
                  return down_(at::relu(up_(x_sE, of_tile)).square(), of_tile);
                });
  return down_.summed(partial, pass);
}

Support SquaredReluMlp::supports(Feature feature) const {
  return feature == Feature::kRoutes || feature == Feature::kRouterCorrections
             ? Support::no("an MLP has no experts")
             : Support::yes();
}

// It saves max(up x, 0) and its square. At the peak, in the square's backward, there are three more
// such tensors: the gradient, twice the input, and their product. With tiles as in GatedMlp, with
// two projections.
Cost SquaredReluMlp::cost(const MixerShape& shape) const {
  const TiledRows at_peak = tiled_rows(shape, hidden_);
  const int64_t s = shape.tokens, rows = at_peak.rows;
  Cost cost;
  cost.saved = 2 * s * size_ * shape.compute;
  cost.recomputed = 2 * rows * size_ * shape.compute;
  cost.flowing = (3 * rows * size_ + at_peak.elements) * shape.compute;
  const int64_t matrix = size_ * hidden_;
  cost.weights = 2 * matrix;
  cost.gradients = (at_peak.tiled ? 3 : 1) * matrix;
  cost.unpacked = 2 * matrix;  // one projection, and its copy that joins it with none
  return cost;
}

}  // namespace ringside::engine
