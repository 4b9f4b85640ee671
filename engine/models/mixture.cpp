#include "engine/models/mixture.h"

#include "engine/nn/experts.h"
#include "engine/nn/linear.h"
#include "engine/nn/router.h"

namespace ringside::engine {

std::vector<LayerPart> mixture_parts(const ModelConfig& config) {
  const int64_t e = config.hidden_size, x = config.experts.count;
  const int64_t i = config.experts.intermediate_size;
  return {single_part(&LayerWeights::router, "mlp.gate.weight", {x, e}),
          {&LayerWeights::experts_gate_up,
           {2 * i, e},
           {{"gate_proj.weight", {i, e}}, {"up_proj.weight", {i, e}}},
           /*of_expert=*/true},
          {&LayerWeights::experts_down,
           {e, i},
           {{"down_proj.weight", {e, i}}},
           /*of_expert=*/true}};
}

at::Tensor mixture(const ModelConfig& config, const LayerWeights& weights,
                   const at::Tensor& normed_sE, const ExpertGroup& group) {
  const at::Tensor logits_sX = apply_linear(normed_sE, weights.router);
  const ExpertsConfig& experts = config.experts;
  const Routes routes = route_by_softmax(logits_sX, experts.per_token, experts.normalise_weights,
                                         config.fp32_norms, group.kept.get());
  return apply_experts(normed_sE, routes, experts.count, group,
                       [&](const at::Tensor& rows, const std::vector<int64_t>& counts) {
                         return swiglu_experts(rows, counts, weights.experts_gate_up,
                                               weights.experts_down);
                       });
}

}  // namespace ringside::engine
