// Channel mixer: MLP without a gate, whose activation is the square of ReLU.
//
// Shapes: s = tokens, E = hidden size, F = intermediate size.
// Source: So et al. 2021, Primer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/layers/linear.h"
#include "engine/layers/mixer.h"

namespace ringside::engine {

class SquaredReluMlp final : public ChannelMixer {
 public:
  // Enters its weights, mlp.up_proj and mlp.down_proj, in the table.
  SquaredReluMlp(const ModelConfig& config, ParamTable& table);

  // down(max(up x, 0)^2), in tiles of rows if the pass asks for them.
  // Collective over: the tensor-parallel ranks, which divide the width as in GatedMlp.
  at::Tensor forward(const at::Tensor& normed_sE, const LayerPass& pass) const override;
  Support supports(Feature feature) const override;
  TensorWidths tensor_widths() const override { return {hidden_, hidden_}; }
  Cost cost(const MixerShape& shape) const override;

 private:
  // columns_of: as mlp_columns().
  SquaredReluMlp(const ModelConfig& config, ParamTable& table,
                 const std::vector<sp::Range>& columns_of);

  int64_t hidden_, size_;  // size: this rank's columns
  Linear up_, down_;
};

}  // namespace ringside::engine
