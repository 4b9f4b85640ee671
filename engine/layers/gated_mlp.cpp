#include "engine/layers/gated_mlp.h"

#include <ATen/ATen.h>

#include "engine/layers/mlp_tiles.h"
#include "engine/nn/swiglu.h"

namespace ringside::engine {
namespace {

std::vector<Projection> gate_and_up(const std::string& module, int64_t size, bool fused) {
  if (fused) {
    return {{module + ".gate_up_proj", 2 * size}};
  }
  return {{module + ".gate_proj", size}, {module + ".up_proj", size}};
}

}  // namespace

GatedMlp::GatedMlp(const ModelConfig& config, ParamTable& table)
    : GatedMlp(table, "mlp", config.hidden_size, config.intermediate_size, config.activation,
               config.mlp_bias ? Bias::kAll : Bias::kNone, config.fused_projections) {}

GatedMlp::GatedMlp(ParamTable& table, const std::string& module, int64_t hidden, int64_t size,
                   GateActivation activation, Bias bias, bool fused)
    : hidden_(hidden),
      size_(size),
      activation_(activation),
      gate_up_(table, gate_and_up(module, size, fused), hidden, bias),
      down_(table, {{module + ".down_proj", hidden}}, size, bias) {}

at::Tensor GatedMlp::of_rows(const at::Tensor& x_sE, const LayerPass& pass) const {
  const at::Tensor gate_up = gate_up_(x_sE, pass);
  return down_(activation_ == GateActivation::kGeluTanh ? geglu(gate_up) : swiglu(gate_up), pass);
}

at::Tensor GatedMlp::forward(const at::Tensor& normed_sE, const LayerPass& pass) const {
  return apply_mlp(
      normed_sE, pass, {&gate_up_, &down_},
      [this](const at::Tensor& x_sE, const LayerPass& of_tile) { return of_rows(x_sE, of_tile); });
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
