// Token mixer: gated delta net, a linear attention with a state for each value head and a causal
// convolution before it. With tensor parallelism a rank has some of the head groups.
//
// Shapes: s = tokens, E = hidden size.
// Source: Yang et al. 2024, Gated Delta Networks; transformers for the projections of each model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "engine/layers/linear.h"
#include "engine/layers/mixer.h"
#include "engine/layers/norm.h"

namespace ringside::engine {

class DeltaNet final : public TokenMixer {
 public:
  // Adds the weights of config.block(layer) to the table.
  DeltaNet(const ModelConfig& config, int64_t layer, ParamTable& table);

  // out(norm(mixed) * silu(gate)), where mixed comes from mix() of the attention backend's
  // recurrent part, which it calls once.
  // Throws: c10::Error when the backend has no recurrent part.
  at::Tensor forward(const at::Tensor& normed_sE, const LayerPass& pass) const override;
  Support supports(Feature feature) const override;
  TokenFlow flow() const override;
  TensorWidths tensor_widths() const override { return {hidden_, hidden_}; }
  Cost cost(const MixerShape& shape) const override;
  MixerWork work(const RankGrid& grid) const override;

 private:
  // The normed and gated result of the rule, of this rank's heads.
  // Shapes: projected [s, outputs of in_], of the rows of all tensor ranks; returns [s, heads x
  // value dim].
  at::Tensor mix(const at::Tensor& projected, const LayerPass& pass) const;

  int64_t layer_, hidden_;
  bool fp32_norms_;
  DeltaNetConfig net_;  // with this rank's heads
  Linear in_;
  Slot conv_, log_decay_, decay_bias_;
  Norm norm_;
  Linear out_;
};

}  // namespace ringside::engine
