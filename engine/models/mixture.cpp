#include "engine/models/mixture.h"

#include "engine/nn/clamped_experts.h"
#include "engine/nn/experts.h"
#include "engine/nn/linear.h"
#include "engine/nn/router.h"

namespace ringside::engine {

namespace {

std::vector<LayerPart> clamped_parts(const ModelConfig& config) {
  const int64_t e = config.hidden_size, x = config.experts.count;
  const int64_t i = config.experts.intermediate_size;
  return {
      single_part(&LayerWeights::router, "mlp.router.weight", {x, e}),
      single_part(&LayerWeights::router_bias, "mlp.router.bias", {x}),
      single_part(&LayerWeights::experts_gate_up, "mlp.experts.gate_up_proj", {x, e, 2 * i}),
      single_part(&LayerWeights::experts_gate_up_bias, "mlp.experts.gate_up_proj_bias", {x, 2 * i}),
      single_part(&LayerWeights::experts_down, "mlp.experts.down_proj", {x, i, e}),
      single_part(&LayerWeights::experts_down_bias, "mlp.experts.down_proj_bias", {x, e})};
}

at::Tensor clamped_mixture(const ModelConfig& config, const LayerWeights& weights,
                           const at::Tensor& normed_sE, const ExpertGroup& group) {
  TORCH_CHECK(group.ranks == nullptr || group.ranks->size() == 1,
              "experts of GPT-OSS are one tensor a layer: parallel.expert_parallel_size must be 1");
  const Routes routes =
      route_by_largest(apply_linear(normed_sE, weights.router, weights.router_bias),
                       config.experts.per_token, group.kept.get());
  const ClampedExperts experts{weights.experts_gate_up, weights.experts_gate_up_bias,
                               weights.experts_down, weights.experts_down_bias};
  return apply_experts(normed_sE, routes, config.experts.count, group,
                       [&](const at::Tensor& rows, const std::vector<int64_t>& counts) {
                         return apply_clamped_experts(rows, counts, experts);
                       });
}

}  // namespace

std::vector<LayerPart> mixture_parts(const ModelConfig& config) {
  if (config.experts.kind == ExpertKind::kClamped) {
    return clamped_parts(config);
  }
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
  if (config.experts.kind == ExpertKind::kClamped) {
    return clamped_mixture(config, weights, normed_sE, group);
  }
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
