// Channel mixer: MLP without a gate, whose activation is the square of ReLU.
//
// Shapes: s = tokens, E = hidden size, F = intermediate size.
// Source: So et al. 2021, Primer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/layers/linear.h"
#include "engine/layers/mixer.h"

namespace ringside::engine {

class SquaredReluMlp final : public ChannelMixer {
 public:
  // Enters its weights, mlp.up_proj and mlp.down_proj, in the table.
  SquaredReluMlp(const ModelConfig& config, ParamTable& table);

  // down(max(up x, 0)^2), in tiles of rows if the pass asks for them. Not collective.
  at::Tensor forward(const at::Tensor& normed_sE, const LayerPass& pass) const override;
  Support supports(Feature feature) const override;
  Cost cost(const MixerShape& shape) const override;

 private:
  int64_t hidden_, size_;
  Linear up_, down_;
};

}  // namespace ringside::engine
