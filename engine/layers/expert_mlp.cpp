#include "engine/layers/expert_mlp.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "engine/nn/clamped_experts.h"
#include "engine/nn/experts.h"
#include "engine/nn/linear.h"

namespace ringside::engine {
namespace {

const ExpertsConfig& checked(const ExpertsConfig& experts) {
  TORCH_CHECK(
      experts.per_token > 0 && experts.per_token <= experts.count && experts.intermediate_size > 0,
      "model config: ", experts.count, " experts of size ", experts.intermediate_size,
      ", of which each token uses ", experts.per_token);
  return experts;
}

Linear router(ParamTable& table, const ModelConfig& config) {
  const bool clamped = config.experts.kind == ExpertKind::kClamped;
  return {
      table,
      {{experts_module(config.experts) + (clamped ? ".router" : ".gate"), config.experts.count}},
      config.hidden_size,
      clamped ? Bias::kAll : Bias::kNone};
}

at::Tensor watched(const at::Tensor& scores_sX, ScoreKind kind, const LayerPass& pass) {
  const LoadBalance* balance = pass.experts.balance();
  return balance == nullptr
             ? scores_sX
             : balance->watch(scores_sX, pass.experts.index, kind, pass.experts.kept.get());
}

}  // namespace

ExpertMlp::ExpertMlp(const ModelConfig& config, ParamTable& table)
    : hidden_(config.hidden_size),
      fp32_norms_(config.fp32_norms),
      experts_(checked(config.experts)),
      router_(router(table, config)),
      slots_(add_experts(table)) {
  if (experts_.shared_intermediate_size == 0) {
    return;
  }
  const std::string module = experts_.gated_shared ? "mlp.shared_expert" : "mlp.shared_experts";
  shared_.emplace(table, module, config.hidden_size, experts_.shared_intermediate_size,
                  config.activation);
  if (experts_.gated_shared) {
    shared_gate_.emplace(table, std::vector<Projection>{{"mlp.shared_expert_gate", 1}},
                         config.hidden_size);
  }
}

ExpertMlp::Slots ExpertMlp::add_experts(ParamTable& table) const {
  const Slots slots = add_weights(table);
  const int64_t size = experts_.intermediate_size;
  const bool input_first = experts_.kind == ExpertKind::kClamped;
  table.add_experts_linears(
      {{slots.gate_up, "experts.gate_up_proj", hidden_, 2 * size, input_first},
       {slots.down, "experts.down_proj", size, hidden_, input_first}});
  return slots;
}

ExpertMlp::Slots ExpertMlp::add_weights(ParamTable& table) const {
  const int64_t e = hidden_, i = experts_.intermediate_size;
  if (experts_.kind == ExpertKind::kClamped) {
    const auto stack = [&](const char* name, const std::vector<int64_t>& of_expert) {
      return table.add(name, of_expert, WeightPlace::kStack);
    };
    Slots slots{};
    slots.gate_up = stack("mlp.experts.gate_up_proj", {e, 2 * i});
    slots.gate_up_bias = stack("mlp.experts.gate_up_proj_bias", {2 * i});
    slots.down = stack("mlp.experts.down_proj", {i, e});
    slots.down_bias = stack("mlp.experts.down_proj_bias", {e});
    return slots;
  }
  // Mixtral's names are w1, w3 and w2.
  const bool numbered = experts_.block_sparse_names;
  const Slot gate_up = table.add(WeightSpec{{2 * i, e},
                                            {{numbered ? "w1.weight" : "gate_proj.weight", {i, e}},
                                             {numbered ? "w3.weight" : "up_proj.weight", {i, e}}},
                                            WeightPlace::kExperts});
  const char* down = numbered ? "w2.weight" : "down_proj.weight";
  return {gate_up, table.add(down, {e, i}, WeightPlace::kExperts), {}, {}};
}

// Logits in fp32, or fp64 for doubles, from inputs and weights of that dtype.
Routes ExpertMlp::route_by_sigmoid(const at::Tensor& normed_sE, const LayerPass& pass) const {
  const bool doubles = normed_sE.scalar_type() == at::kDouble && !fp32_norms_;
  const at::ScalarType dtype = doubles ? at::kDouble : at::kFloat;
  const Weight weight(router_.weight(pass).value.to(dtype), router_.weight(pass).leaf);
  const at::Tensor scores_sX =
      watched(at::sigmoid(apply_linear(normed_sE.to(dtype), weight)), ScoreKind::kSigmoids, pass);
  const at::Tensor expert_sK = pass.experts.choose(experts_.count, [&] {
    return choose_in_groups(scores_sX, pass.experts.correction_X.to(dtype),
                            {experts_.per_token, experts_.groups, experts_.kept_groups});
  });
  return {expert_sK,
          weigh_scores(scores_sX, expert_sK, experts_.normalise_weights, experts_.weight_factor)};
}

Routes ExpertMlp::route_by_logits(const at::Tensor& normed_sE, const LayerPass& pass) const {
  const at::Tensor logits_sX = watched(router_(normed_sE, pass), ScoreKind::kLogits, pass);
  return experts_.kind == ExpertKind::kClamped
             ? route_by_largest(logits_sX, experts_.per_token, pass.experts)
             : route_by_softmax(logits_sX, experts_.per_token, experts_.normalise_weights,
                                fp32_norms_, pass.experts);
}

Routes ExpertMlp::route(const at::Tensor& normed_sE, const LayerPass& pass) const {
  Routes routes = experts_.router == RouterKind::kSigmoid ? route_by_sigmoid(normed_sE, pass)
                                                          : route_by_logits(normed_sE, pass);
  if (const LoadBalance* balance = pass.experts.balance()) {
    balance->count(routes.expert_sK, pass.experts.index, pass.experts.kept.get());
  }
  return routes;
}

at::Tensor ExpertMlp::results(const at::Tensor& rows, const std::vector<int64_t>& counts,
                              const LayerPass& pass) const {
  const Weight& gate_up = pass.weights[slots_.gate_up];
  const Weight& down = pass.weights[slots_.down];
  return slots_.gate_up_bias ? apply_clamped_experts(rows, counts,
                                                     {gate_up, pass.weights[*slots_.gate_up_bias],
                                                      down, pass.weights[*slots_.down_bias],
                                                      experts_.gate_limit, experts_.gate_alpha})
                             : swiglu_experts(rows, counts, gate_up, down);
}

at::Tensor ExpertMlp::forward(const at::Tensor& normed_sE, const LayerPass& pass) const {
  const at::Tensor routed =
      apply_experts(normed_sE, route(normed_sE, pass), experts_.count, pass.experts,
                    [&](const at::Tensor& rows, const std::vector<int64_t>& counts) {
                      return results(rows, counts, pass);
                    });
  if (!shared_) {
    return routed;
  }
  const at::Tensor shared = shared_->of_rows(normed_sE, pass);
  return shared_gate_ ? routed + shared * at::sigmoid((*shared_gate_)(normed_sE, pass))
                      : routed + shared;
}

Support ExpertMlp::supports(Feature feature) const {
  switch (feature) {
    case Feature::kAdapters:
      return Support::no("experts have none under the names of an MLP");
    case Feature::kPackedBase:
      return Support::no("experts cannot be quantised");
    case Feature::kRouterCorrections:
      return experts_.router == RouterKind::kSigmoid
                 ? Support::yes()
                 : Support::no("the routers have no corrections");
    case Feature::kAsyncUlysses:
    case Feature::kRoutes:
    case Feature::kTensorCut:
      break;
  }
  return Support::yes();
}

// It saves gate, up and their product for every route, beside the routed rows, the results, and
// where they belong.
Cost ExpertMlp::cost(const MixerShape& shape) const {
  const int64_t rows = shape.own_rows(), compute = shape.compute, size = experts_.intermediate_size;
  const int64_t routed = rows * experts_.per_token;
  const int64_t router = rows * experts_.count * (compute + shape.sums);
  const int64_t shared = 3 * rows * experts_.shared_intermediate_size * compute;
  // Places: of rows among the pairs, twice, and the routes; with several ranks of the rows that
  // arrive, twice.
  const int64_t places = shape.expert_ranks > 1 ? 5 : 3;
  const int64_t mine = (experts_.count + shape.expert_ranks - 1) / shape.expert_ranks;
  Cost cost;
  cost.saved = routed * ((3 * size + 2 * hidden_) * compute + places * 8) + router + shared;
  cost.kept = routed * 8;  // the routes
  cost.recomputed = cost.saved;
  cost.flowing = routed * (2 * size * compute + hidden_ * shape.sums);
  cost.gradients = mine * size * hidden_;
  cost.weights = 3 * cost.gradients;
  return cost;
}

}  // namespace ringside::engine
