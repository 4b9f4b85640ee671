// Channel mixer: gated MLP (SwiGLU, or with another activation of the gate).
//
// With tensor parallelism the model's MLP is divided by its width, in units of 8.
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
  // One of another size, whose parameters' names begin with `module`, whole on every rank.
  GatedMlp(ParamTable& table, const std::string& module, int64_t hidden, int64_t size,
           GateActivation activation);

  // down(activation(gate x) * up x), in tiles of rows if the pass asks for them.
  // Collective over: the tensor-parallel ranks.
  at::Tensor forward(const at::Tensor& normed_sE, const LayerPass& pass) const override;
  Support supports(Feature feature) const override;
  TensorWidths tensor_widths() const override { return {hidden_, hidden_}; }
  Cost cost(const MixerShape& shape) const override;
  // Of all rows at once: with a divided width this rank's partial sums. Not collective.
  at::Tensor of_rows(const at::Tensor& x_sE, const LayerPass& pass) const;

 private:
  // How gate and up enter the table, and the columns of all three that each tensor rank has.
  struct Width {
    bool fused = false;  // gate and up are one parameter
    Bias bias = Bias::kNone;
    std::vector<sp::Range> columns_of = {};  // empty: all
  };
  GatedMlp(ParamTable& table, const std::string& module, int64_t hidden, int64_t size,
           GateActivation activation, const Width& width);

  int64_t hidden_, size_;  // size: this rank's columns
  GateActivation activation_;
  Linear gate_up_, down_;
};

}  // namespace ringside::engine
