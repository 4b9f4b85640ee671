#include "engine/models/decoder_layer.h"

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <utility>

#include "engine/nn/experts.h"
#include "engine/nn/linear.h"
#include "engine/nn/qk_norm_rope.h"
#include "engine/nn/rms_norm.h"
#include "engine/nn/swiglu.h"
#include "engine/nn/tiles.h"

namespace ringside::engine {
namespace {

// Rows of a plain weight or bias, cut into runs of these sizes. Undefined ones of an undefined one.
std::vector<Weight> split_rows(const Weight& weight, const std::vector<int64_t>& sizes) {
  if (!weight.defined()) {
    return std::vector<Weight>(sizes.size());
  }
  const auto values = weight.value.split_with_sizes(sizes);
  if (weight.value.is_same(weight.leaf)) {
    return {values.begin(), values.end()};
  }
  const auto leaves = weight.leaf.split_with_sizes(sizes);
  std::vector<Weight> parts;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    parts.emplace_back(values[i], leaves[i]);
  }
  return parts;
}

HeadNorms head_norms(const ModelConfig& config, const LayerWeights& weights) {
  return {weights.q_norm, weights.k_norm, config.rms_norm_eps, config.fp32_norms};
}

// Self-attention whose projections overlap the exchange of heads. This rank norms, rotates and
// attends its own heads of all exchanged tokens.
at::Tensor overlapped_self_attention(const ModelConfig& config, const LayerWeights& weights,
                                     const at::Tensor& normed_sE, const RopeTables& rope,
                                     OverlappedAttention& attention) {
  for (const Weight* weight : {&weights.qkv_weight, &weights.o_weight}) {
    TORCH_CHECK(weight->low_rank == nullptr && weight->packed == nullptr,
                "overlapped attention projects plain weights, without adapters and not quantised");
  }
  const int64_t d = config.head_dim, h = config.num_attention_heads, k = config.num_key_value_heads;
  const std::vector<int64_t> sizes{h * d, k * d, k * d};
  const auto weight = split_rows(weights.qkv_weight, sizes);
  const auto bias = split_rows(weights.qkv_bias, sizes);
  auto heads = attention.project(normed_sE, {weight[0], bias[0]}, {weight[1], bias[1]},
                                 {weight[2], bias[2]});
  const HeadCounts own{heads.q_ShD.size(1), heads.k_SkD.size(1)};
  const RotatedHeads rotated = norm_and_rotate(at::cat({heads.q_ShD, heads.k_SkD}, 1), own,
                                               head_norms(config, weights), rope);
  heads.q_ShD = rotated.q_sHD;
  heads.k_SkD = rotated.k_sKD;
  return attention.project_out(attention.attend_heads(heads), {weights.o_weight, weights.o_bias});
}

at::Tensor self_attention(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                          const at::Tensor& normed_sE, const RopeTables& rope,
                          AttentionBackend& attention) {
  if (OverlappedAttention* overlapped = attention.overlapped()) {
    return overlapped_self_attention(config, weights, normed_sE, rope, *overlapped);
  }
  const int64_t s = normed_sE.size(0), d = config.head_dim;
  const int64_t h = config.num_attention_heads, k = config.num_key_value_heads;
  const at::Tensor qkv = apply_linear(normed_sE, weights.qkv_weight, weights.qkv_bias);
  const RotatedHeads heads =
      norm_and_rotate(qkv.view({s, h + 2 * k, d}), {h, k}, head_norms(config, weights), rope);
  const at::Tensor out_sHD = attention.attend(layer, heads.q_sHD, heads.k_sKD, heads.v);
  return apply_linear(out_sHD.reshape({s, h * d}), weights.o_weight, weights.o_bias);
}

// What the gradients of the MLP's weights arrive at, adapters included; undefined ones among them.
std::vector<at::Tensor> mlp_leaves(const LayerWeights& weights) {
  std::vector<at::Tensor> leaves{weights.gate_up_bias.leaf, weights.down_bias.leaf};
  for (const Weight* weight : {&weights.gate_up_weight, &weights.down_weight}) {
    leaves.push_back(weight->leaf);
    if (weight->low_rank) {
      leaves.push_back(weight->low_rank->a_leaf);
      for (const LowRank::Part& part : weight->low_rank->parts) {
        leaves.push_back(part.b_leaf);
      }
    }
  }
  return leaves;
}

at::Tensor mlp(const LayerWeights& weights, const at::Tensor& normed_sE, MlpTiles tiles) {
  const auto rows = [weights](const at::Tensor& x) {
    const at::Tensor gate_up = apply_linear(x, weights.gate_up_weight, weights.gate_up_bias);
    return apply_linear(swiglu(gate_up), weights.down_weight, weights.down_bias);
  };
  if (tiles.rows == 0) {
    return rows(normed_sE);
  }
  return tiles.value_read
             ? apply_in_tiles(normed_sE, tiles.rows, rows)
             : gradient_path_in_tiles(normed_sE, tiles.rows, mlp_leaves(weights), rows);
}

at::Tensor mixture(const ModelConfig& config, const LayerWeights& weights,
                   const at::Tensor& normed_sE, const ExpertGroup& group) {
  const at::Tensor logits_sX = apply_linear(normed_sE, weights.router);
  const ExpertsConfig& experts = config.experts;
  const Routes routes =
      route_by_softmax(logits_sX, experts.per_token, experts.normalise_weights, config.fp32_norms);
  return apply_experts(
      normed_sE, routes, group,
      [&](const at::Tensor& rows, const std::vector<int64_t>& counts) {
        return swiglu_experts(rows, counts, weights.experts_gate_up, weights.experts_down);
      });
}

using AddSpec = std::function<void(const std::string& name, std::vector<int64_t> shape)>;

void add_attention_specs(const ModelConfig& config, const AddSpec& add) {
  const int64_t e = config.hidden_size, d = config.head_dim;
  const int64_t q = config.num_attention_heads * d, kv = config.num_key_value_heads * d;
  add("self_attn.q_proj.weight", {q, e});
  add("self_attn.k_proj.weight", {kv, e});
  add("self_attn.v_proj.weight", {kv, e});
  if (config.qkv_bias) {
    add("self_attn.q_proj.bias", {q});
    add("self_attn.k_proj.bias", {kv});
    add("self_attn.v_proj.bias", {kv});
  }
  add("self_attn.o_proj.weight", {e, q});
  if (config.o_bias) {
    add("self_attn.o_proj.bias", {e});
  }
  if (config.qk_norm) {
    add("self_attn.q_norm.weight", {d});
    add("self_attn.k_norm.weight", {d});
  }
}

void add_mlp_specs(const ModelConfig& config, const AddSpec& add) {
  const int64_t e = config.hidden_size, f = config.intermediate_size;
  add("mlp.gate_proj.weight", {f, e});
  add("mlp.up_proj.weight", {f, e});
  if (config.mlp_bias) {
    add("mlp.gate_proj.bias", {f});
    add("mlp.up_proj.bias", {f});
  }
  add("mlp.down_proj.weight", {e, f});
  if (config.mlp_bias) {
    add("mlp.down_proj.bias", {e});
  }
}

void add_experts_specs(const ModelConfig& config, const AddSpec& add) {
  const int64_t e = config.hidden_size, i = config.experts.intermediate_size;
  for (int64_t x = 0; x < config.experts.count; ++x) {
    const std::string expert = "mlp.experts." + std::to_string(x) + ".";
    add(expert + "gate_proj.weight", {i, e});
    add(expert + "up_proj.weight", {i, e});
    add(expert + "down_proj.weight", {e, i});
  }
}

AddSpec add_to(std::vector<ParamSpec>& specs, int64_t layer) {
  return [&specs, layer](const std::string& name, std::vector<int64_t> shape) {
    specs.push_back({"model.layers." + std::to_string(layer) + "." + name, std::move(shape)});
  };
}

}  // namespace

std::vector<ParamSpec> layer_experts_specs(const ModelConfig& config, int64_t layer) {
  std::vector<ParamSpec> specs;
  if (config.has_experts(layer)) {
    add_experts_specs(config, add_to(specs, layer));
  }
  return specs;
}

std::vector<ParamSpec> decoder_layer_specs(const ModelConfig& config, int64_t layer) {
  std::vector<ParamSpec> specs;
  const AddSpec add = add_to(specs, layer);
  add_attention_specs(config, add);
  if (config.has_experts(layer)) {
    add("mlp.gate.weight", {config.experts.count, config.hidden_size});
  } else {
    add_mlp_specs(config, add);
  }
  add("input_layernorm.weight", {config.hidden_size});
  add("post_attention_layernorm.weight", {config.hidden_size});
  return specs;
}

namespace {

// Each matrix of a layer with the place it goes to, in the order of decoder_layer_specs().
struct LayerPart {
  Weight LayerWeights::*target;
  std::vector<int64_t> shape;
};

std::vector<LayerPart> parts_of(const ModelConfig& config, int64_t layer, LayerParts which) {
  const bool projections = which == LayerParts::kAll;
  const bool experts = config.has_experts(layer);
  const int64_t e = config.hidden_size, f = config.intermediate_size, d = config.head_dim;
  const int64_t h = config.num_attention_heads, k = config.num_key_value_heads;
  std::vector<LayerPart> parts;
  const auto cut = [&](Weight LayerWeights::*target, std::vector<int64_t> shape,
                       bool present = true) {
    if (present) {
      parts.push_back({target, std::move(shape)});
    }
  };
  cut(&LayerWeights::qkv_weight, {(h + 2 * k) * d, e}, projections);
  cut(&LayerWeights::qkv_bias, {(h + 2 * k) * d}, config.qkv_bias);
  cut(&LayerWeights::o_weight, {e, h * d}, projections);
  cut(&LayerWeights::o_bias, {e}, config.o_bias);
  cut(&LayerWeights::q_norm, {d}, config.qk_norm);
  cut(&LayerWeights::k_norm, {d}, config.qk_norm);
  cut(&LayerWeights::gate_up_weight, {2 * f, e}, projections && !experts);
  cut(&LayerWeights::gate_up_bias, {2 * f}, config.mlp_bias && !experts);
  cut(&LayerWeights::down_weight, {e, f}, projections && !experts);
  cut(&LayerWeights::down_bias, {e}, config.mlp_bias && !experts);
  cut(&LayerWeights::router, {config.experts.count, e}, experts);
  cut(&LayerWeights::input_norm, {e});
  cut(&LayerWeights::post_attention_norm, {e});
  return parts;
}

}  // namespace

UnitShapes layer_shapes(const ModelConfig& config, int64_t layer, at::ScalarType compute_dtype,
                        LayerParts which) {
  UnitShapes cut{compute_dtype, {}};
  for (LayerPart& part : parts_of(config, layer, which)) {
    cut.shapes.push_back(std::move(part.shape));
  }
  return cut;
}

LayerWeights layer_weights(const ModelConfig& config, int64_t layer,
                           const std::vector<Weight>& matrices, LayerParts which) {
  LayerWeights weights;
  const std::vector<LayerPart> parts = parts_of(config, layer, which);
  TORCH_CHECK(matrices.size() == parts.size(), "a layer of ", parts.size(), " matrices, got ",
              matrices.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    weights.*parts[i].target = matrices[i];
  }
  return weights;
}

UnitShapes experts_shapes(const ModelConfig& config, int64_t count, at::ScalarType compute_dtype) {
  const int64_t e = config.hidden_size, i = config.experts.intermediate_size;
  return {compute_dtype, {{count, 2 * i, e}, {count, e, i}}, count};
}

void set_experts(LayerWeights& weights, const std::vector<Weight>& matrices) {
  weights.experts_gate_up = matrices.at(0);
  weights.experts_down = matrices.at(1);
}

LayerWeights materialize_layer(const ModelConfig& config, int64_t layer, const ParamUnit& unit,
                               at::ScalarType compute_dtype, LayerParts which) {
  const UnitShapes cut = layer_shapes(config, layer, compute_dtype, which);
  return layer_weights(config, layer, unit.materialize(cut), which);
}

at::Tensor decoder_layer(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                         const at::Tensor& hidden_sE, const RopeTables& rope,
                         AttentionBackend& attention, MlpTiles tiles,
                         const ExpertGroup& experts) {
  const double eps = config.rms_norm_eps;
  const ResidualNorm in = residual_rms_norm(hidden_sE, weights.input_norm, eps, config.fp32_norms);
  const ResidualNorm attended =
      add_rms_norm(in.residual, self_attention(config, weights, layer, in.normed, rope, attention),
                   weights.post_attention_norm, eps, config.fp32_norms);
  return attended.residual + (config.has_experts(layer) ? mixture(config, weights, attended.normed, experts)
                                                        : mlp(weights, attended.normed, tiles));
}

}  // namespace ringside::engine
