#include "engine/layers/gated_mlp.h"

#include <ATen/ATen.h>

#include "engine/layers/mlp_tiles.h"
#include "engine/ops/gated_activation.h"

namespace ringside::engine {
namespace {

std::vector<Projection> gate_and_up(const std::string& module, int64_t size, bool fused,
                                    const std::vector<sp::Range>& columns_of) {
  if (fused) {
    const std::vector<int64_t> each{1, 1};
    return {{module + ".gate_up_proj", 2 * size,
             columns_of.empty() ? TensorCut{} : cut_blocks(columns_of, size, each)}};
  }
  const TensorCut cut = own_outputs_cut(columns_of);
  return {{module + ".gate_proj", size, cut}, {module + ".up_proj", size, cut}};
}

}  // namespace

GatedMlp::GatedMlp(const ModelConfig& config, ParamTable& table)
    : GatedMlp(table, "mlp", config.hidden_size, config.intermediate_size, config.activation,
               {config.fused_projections, config.mlp_bias ? Bias::kAll : Bias::kNone,
                mlp_columns(config.intermediate_size, table.place())}) {}

GatedMlp::GatedMlp(ParamTable& table, const std::string& module, int64_t hidden, int64_t size,
                   GateActivation activation)
    : GatedMlp(table, module, hidden, size, activation, Width{}) {}

GatedMlp::GatedMlp(ParamTable& table, const std::string& module, int64_t hidden, int64_t size,
                   GateActivation activation, const Width& width)
    : hidden_(hidden),
      size_(own_columns(size, width.columns_of, table.place())),
      activation_(activation),
      gate_up_(table, gate_and_up(module, size, width.fused, width.columns_of), hidden, width.bias),
      down_(table, {{module + ".down_proj", hidden, own_inputs_cut(width.columns_of)}}, size,
            width.bias) {}

at::Tensor GatedMlp::of_rows(const at::Tensor& x_sE, const LayerPass& pass) const {
  const at::Tensor gate_up = gate_up_(x_sE, pass);
  return down_(activation_ == GateActivation::kGeluTanh ? geglu(gate_up) : swiglu(gate_up), pass);
}

at::Tensor GatedMlp::forward(const at::Tensor& normed_sE, const LayerPass& pass) const {
  const at::Tensor partial = apply_mlp(
      gather_rows(normed_sE, pass.rows), pass, {&gate_up_, &down_},
      [this](const at::Tensor& x_sE, const LayerPass& of_tile) { return of_rows(x_sE, of_tile); });
  return down_.summed(partial, pass);
}

Support GatedMlp::supports(Feature feature) const {
  return feature == Feature::kRoutes || feature == Feature::kRouterCorrections
             ? Support::no("an MLP has no experts")
             : Support::yes();
}

// It saves gate, up and their product. At the peak there is the down projection's gradient; with
// tiles, those of all three and a tile's, and a tile's input and output beside the whole.
Cost GatedMlp::cost(const MixerShape& shape) const {
  const TiledRows at_peak = tiled_rows(shape, hidden_);
  const int64_t s = shape.tokens, rows = at_peak.rows;
  Cost cost;
  cost.saved = 3 * s * size_ * shape.compute;
  cost.recomputed = 3 * rows * size_ * shape.compute;
  cost.flowing = (2 * rows * size_ + at_peak.elements) * shape.compute;
  const int64_t matrix = size_ * hidden_;
  cost.weights = 3 * matrix;
  cost.gradients = (at_peak.tiled ? 5 : 1) * matrix;
  cost.unpacked = 4 * matrix;  // gate and up, each for itself and joined
  return cost;
}

}  // namespace ringside::engine
