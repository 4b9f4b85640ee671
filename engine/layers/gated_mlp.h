// Channel mixer: gated MLP (SwiGLU, or with another activation of the gate).
//
// Shapes: s = tokens, E = hidden size, F = its own size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "engine/layers/linear.h"
#include "engine/layers/mixer.h"

namespace ringside::engine {

class GatedMlp final : public ChannelMixer {
 public:
  // The model's MLP.
  GatedMlp(const ModelConfig& config, ParamTable& table);
  // One of another size, whose parameters' names begin with `module`. fused: gate and up are one
  // parameter.
  GatedMlp(ParamTable& table, const std::string& module, int64_t hidden, int64_t size,
           GateActivation activation, Bias bias = Bias::kNone, bool fused = false);

  // down(activation(gate x) * up x), in tiles of rows if the pass asks for them. Not collective.
  at::Tensor forward(const at::Tensor& normed_sE, const LayerPass& pass) const override;
  Support supports(Feature feature) const override;
  Cost cost(const MixerShape& shape) const override;
  // Of all rows at once.
  at::Tensor of_rows(const at::Tensor& x_sE, const LayerPass& pass) const;

 private:
  int64_t hidden_, size_;
  GateActivation activation_;
  Linear gate_up_, down_;
};

}  // namespace ringside::engine
