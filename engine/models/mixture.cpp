#include "engine/models/mixture.h"

#include <string>

#include "engine/nn/experts.h"
#include "engine/nn/linear.h"
#include "engine/nn/router.h"

namespace ringside::engine {

// gate and up of each expert side by side, then all down projections, so that either is one tensor.
std::vector<LayerPart> mixture_parts(const ModelConfig& config) {
  const int64_t e = config.hidden_size, x = config.experts.count;
  const int64_t i = config.experts.intermediate_size;
  const auto name = [](int64_t expert, const char* matrix) {
    return "mlp.experts." + std::to_string(expert) + "." + matrix + ".weight";
  };
  LayerPart gate_up{&LayerWeights::experts_gate_up, {x, 2 * i, e}, {}};
  LayerPart down{&LayerWeights::experts_down, {x, e, i}, {}};
  for (int64_t expert = 0; expert < x; ++expert) {
    gate_up.params.push_back({name(expert, "gate_proj"), {i, e}});
    gate_up.params.push_back({name(expert, "up_proj"), {i, e}});
    down.params.push_back({name(expert, "down_proj"), {e, i}});
  }
  return {single_part(&LayerWeights::router, "mlp.gate.weight", {x, e}), gate_up, down};
}

at::Tensor mixture(const ModelConfig& config, const LayerWeights& weights,
                   const at::Tensor& normed_sE, const LayerContext& context) {
  const at::Tensor logits_sX = apply_linear(normed_sE, weights.router);
  const ExpertsConfig& experts = config.experts;
  const Routes routes = route_by_softmax(logits_sX, experts.per_token, experts.normalise_weights,
                                         config.fp32_norms, context.routes);
  return apply_experts(normed_sE, routes, weights.experts_gate_up, weights.experts_down);
}

}  // namespace ringside::engine
