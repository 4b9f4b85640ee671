#include "engine/layers/gated_mlp.h"

#include <ATen/ATen.h>

#include "engine/layers/mlp_tiles.h"
#include "engine/nn/swiglu.h"

namespace ringside::engine {

GatedMlp::GatedMlp(const ModelConfig& config, ParamTable& table)
    : GatedMlp(table, "mlp", config.hidden_size, config.intermediate_size, config.activation,
               config.mlp_bias ? Bias::kAll : Bias::kNone) {}

GatedMlp::GatedMlp(ParamTable& table, const std::string& module, int64_t hidden, int64_t size,
                   GateActivation activation, Bias bias)
    : activation_(activation),
      gate_up_(table, {{module + ".gate_proj", size}, {module + ".up_proj", size}}, hidden, bias),
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

}  // namespace ringside::engine
