// Channel mixer: router and experts, and perhaps an MLP that every token uses. With tensor
// parallelism all of it is whole, on each rank's own rows: the ranks of the experts divide them.
//
// Shapes: s = tokens, E = hidden size, X = experts, I = an expert's MLP size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "engine/layers/gated_mlp.h"
#include "engine/layers/linear.h"
#include "engine/layers/mixer.h"
#include "engine/nn/load_balance.h"
#include "engine/nn/router.h"

namespace ringside::engine {

class ExpertMlp final : public ChannelMixer {
 public:
  // Parameters in WeightPlace::kExperts are named behind "<experts_module()>.experts.<x>.".
  // Throws: c10::Error on impossible numbers of experts.
  ExpertMlp(const ModelConfig& config, ParamTable& table);

  // Sum of each token's experts, weighted by the router. The experts are the router's choice or
  // replayed ones.
  // Collective over, blocks: as apply_experts().
  at::Tensor forward(const at::Tensor& normed_sE, const LayerPass& pass) const override;
  Support supports(Feature feature) const override;
  TensorWidths tensor_widths() const override { return {}; }
  Routing routing() const override { return {experts_.count, experts_.per_token}; }
  Cost cost(const MixerShape& shape) const override;

 private:
  // Their weights: [x, 2I, E] and [x, E, I] of the x experts of this rank; those of clamped experts
  // and their biases as in clamped_experts.h.
  struct Slots {
    Slot gate_up, down;
    std::optional<Slot> gate_up_bias, down_bias;
  };
  // Enters them as projections, too.
  Slots add_experts(ParamTable& table) const;
  Slots add_weights(ParamTable& table) const;
  Routes route(const at::Tensor& normed_sE, const LayerPass& pass) const;
  Routes route_by_sigmoid(const at::Tensor& normed_sE, const LayerPass& pass) const;
  Routes route_by_logits(const at::Tensor& normed_sE, const LayerPass& pass) const;
  at::Tensor results(const at::Tensor& rows, const std::vector<int64_t>& counts,
                     const LayerPass& pass) const;

  int64_t hidden_;
  bool fp32_norms_;
  ExpertsConfig experts_;
  Linear router_;
  Slots slots_;
  std::optional<GatedMlp> shared_;
  std::optional<Linear> shared_gate_;
};

}  // namespace ringside::engine
