#include "engine/models/mixture.h"

#include <ATen/ATen.h>

#include <string>
#include <utility>

#include "engine/models/gated_mlp.h"
#include "engine/nn/clamped_experts.h"
#include "engine/nn/experts.h"
#include "engine/nn/linear.h"
#include "engine/nn/router.h"

namespace ringside::engine {
namespace {

at::Tensor watched(const at::Tensor& scores_sX, ScoreKind kind, const LayerContext& context) {
  return context.balance == nullptr ? scores_sX
                                    : context.balance->watch(scores_sX, context.routes.index, kind,
                                                             context.experts.kept.get());
}

// Logits in fp32, or fp64 for doubles, from inputs and weights of that dtype.
Routes route_by_sigmoid(const ModelConfig& config, const LayerWeights& weights,
                        const at::Tensor& normed_sE, const LayerContext& context) {
  const ExpertsConfig& experts = config.experts;
  const bool doubles = normed_sE.scalar_type() == at::kDouble && !config.fp32_norms;
  const at::ScalarType dtype = doubles ? at::kDouble : at::kFloat;
  const Weight router(weights.router.value.to(dtype), weights.router.leaf);
  const at::Tensor scores_sX = watched(at::sigmoid(apply_linear(normed_sE.to(dtype), router)),
                                       ScoreKind::kSigmoids, context);
  const at::Tensor expert_sK = context.routes.choose(experts.count, [&] {
    return choose_in_groups(scores_sX, weights.router_correction.to(dtype),
                            {experts.per_token, experts.groups, experts.kept_groups});
  });
  return {expert_sK,
          weigh_scores(scores_sX, expert_sK, experts.normalise_weights, experts.weight_factor)};
}

Routes route_by_logits(const ModelConfig& config, const LayerWeights& weights,
                       const at::Tensor& normed_sE, const LayerContext& context) {
  const ExpertsConfig& experts = config.experts;
  const at::Tensor logits_sX = watched(apply_linear(normed_sE, weights.router, weights.router_bias),
                                       ScoreKind::kLogits, context);
  return experts.kind == ExpertKind::kClamped
             ? route_by_largest(logits_sX, experts.per_token, context.routes)
             : route_by_softmax(logits_sX, experts.per_token, experts.normalise_weights,
                                config.fp32_norms, context.routes);
}

Routes route(const ModelConfig& config, const LayerWeights& weights, const at::Tensor& normed_sE,
             const LayerContext& context) {
  Routes routes = config.experts.router == RouterKind::kSigmoid
                      ? route_by_sigmoid(config, weights, normed_sE, context)
                      : route_by_logits(config, weights, normed_sE, context);
  if (context.balance != nullptr) {
    context.balance->count(routes.expert_sK, context.routes.index, context.experts.kept.get());
  }
  return routes;
}

std::vector<LayerPart> shared_mlp_parts(const ModelConfig& config) {
  const int64_t e = config.hidden_size, f = config.experts.shared_intermediate_size;
  const std::string prefix =
      config.experts.gated_shared ? "mlp.shared_expert" : "mlp.shared_experts";
  std::vector<LayerPart> parts{
      {&LayerWeights::gate_up_weight,
       {2 * f, e},
       {{prefix + ".gate_proj.weight", {f, e}}, {prefix + ".up_proj.weight", {f, e}}}},
      {&LayerWeights::down_weight, {e, f}, {{prefix + ".down_proj.weight", {e, f}}}}};
  if (config.experts.gated_shared) {
    parts.push_back(
        single_part(&LayerWeights::shared_gate, "mlp.shared_expert_gate.weight", {1, e}));
  }
  return parts;
}

std::vector<LayerPart> clamped_parts(const ModelConfig& config) {
  const int64_t e = config.hidden_size, x = config.experts.count;
  const int64_t i = config.experts.intermediate_size;
  const auto stack = [](Weight LayerWeights::*target, const char* name,
                        const std::vector<int64_t>& of_expert) {
    return single_part(target, name, of_expert, PartPlace::kStack);
  };
  return {single_part(&LayerWeights::router, "mlp.router.weight", {x, e}),
          single_part(&LayerWeights::router_bias, "mlp.router.bias", {x}),
          stack(&LayerWeights::experts_gate_up, "mlp.experts.gate_up_proj", {e, 2 * i}),
          stack(&LayerWeights::experts_gate_up_bias, "mlp.experts.gate_up_proj_bias", {2 * i}),
          stack(&LayerWeights::experts_down, "mlp.experts.down_proj", {i, e}),
          stack(&LayerWeights::experts_down_bias, "mlp.experts.down_proj_bias", {e})};
}

}  // namespace

std::vector<LayerPart> mixture_parts(const ModelConfig& config) {
  if (config.experts.kind == ExpertKind::kClamped) {
    return clamped_parts(config);
  }
  const int64_t e = config.hidden_size, x = config.experts.count;
  const int64_t i = config.experts.intermediate_size;
  std::vector<LayerPart> parts{
      single_part(&LayerWeights::router, "mlp.gate.weight", {x, e}),
      {&LayerWeights::experts_gate_up,
       {2 * i, e},
       {{"gate_proj.weight", {i, e}}, {"up_proj.weight", {i, e}}},
       PartPlace::kExperts},
      {&LayerWeights::experts_down, {e, i}, {{"down_proj.weight", {e, i}}}, PartPlace::kExperts}};
  if (config.experts.shared_intermediate_size > 0) {
    for (LayerPart& part : shared_mlp_parts(config)) {
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

at::Tensor mixture(const ModelConfig& config, const LayerWeights& weights,
                   const at::Tensor& normed_sE, const LayerContext& context) {
  const bool clamped = config.experts.kind == ExpertKind::kClamped;
  const auto results = [&](const at::Tensor& rows, const std::vector<int64_t>& counts) {
    return clamped ? apply_clamped_experts(rows, counts,
                                           {weights.experts_gate_up, weights.experts_gate_up_bias,
                                            weights.experts_down, weights.experts_down_bias})
                   : swiglu_experts(rows, counts, weights.experts_gate_up, weights.experts_down);
  };
  const at::Tensor routed = apply_experts(normed_sE, route(config, weights, normed_sE, context),
                                          config.experts.count, context.experts, results);
  if (config.experts.shared_intermediate_size == 0) {
    return routed;
  }
  const at::Tensor shared = gated_mlp(config, weights, normed_sE, {});
  return config.experts.gated_shared
             ? routed + shared * at::sigmoid(apply_linear(normed_sE, weights.shared_gate))
             : routed + shared;
}

}  // namespace ringside::engine
