#include "engine/models/softmax_attention.h"

#include <ATen/ATen.h>

#include "engine/nn/leaf_value.h"
#include "engine/nn/linear.h"
#include "engine/nn/qk_norm_rope.h"

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

// RoPE turns component i with component i + D/2. With rotary_dim r it turns i with i + r/2 instead,
// i < r/2. So components are put in an order in which these pairs lie D/2 apart; scores of queries
// and keys in the same order are the same.
at::Tensor pair_components(const ModelConfig& config, const at::Tensor& x) {
  const int64_t r = config.attention.rotary_dim, d = config.head_dim, still = (d - r) / 2;
  if (r == 0 || r == d || !x.defined()) {
    return x;
  }
  return at::cat({x.narrow(-1, 0, r / 2), x.narrow(-1, r, still), x.narrow(-1, r / 2, r / 2),
                  x.narrow(-1, r + still, still)},
                 -1);
}

Weight pair_components(const ModelConfig& config, const Weight& norm) {
  if (norm.value.is_same(norm.leaf)) {
    return pair_components(config, norm.value);
  }
  // A sharded unit's leaf has no values of its own.
  return {pair_components(config, norm.value),
          pair_components(config, leaf_value(norm, norm.leaf.scalar_type()))};
}

HeadNorms head_norms(const ModelConfig& config, const LayerWeights& weights) {
  return {pair_components(config, weights.q_norm), pair_components(config, weights.k_norm),
          config.norm_options()};
}

// Attention with an output gate, or with RoPE of a part of each head.
at::Tensor gated_attention(const ModelConfig& config, const LayerWeights& weights,
                           const AttentionSpec& spec, const at::Tensor& normed_sE,
                           const RopeTables& rope, AttentionBackend& attention) {
  const int64_t d = config.head_dim, h = config.num_attention_heads, k = config.num_key_value_heads;
  const int64_t q_dim = config.attention.gated ? 2 * d : d;
  const at::Tensor qkv = apply_linear(normed_sE, weights.qkv_weight, weights.qkv_bias);
  const at::Tensor q_gate = qkv.narrow(1, 0, h * q_dim).unflatten(1, {h, q_dim});
  const at::Tensor keys = qkv.narrow(1, h * q_dim, k * d).unflatten(1, {k, d});
  const at::Tensor values = qkv.narrow(1, h * q_dim + k * d, k * d).unflatten(1, {k, d});
  const at::Tensor qk = pair_components(config, at::cat({q_gate.narrow(2, 0, d), keys}, 1));
  const RotatedHeads heads = norm_and_rotate(qk, {h, k}, head_norms(config, weights), rope);
  at::Tensor out_sHD = attention.attend(spec, heads.q_sHD, heads.k_sKD, values);
  if (config.attention.gated) {
    out_sHD = out_sHD * at::sigmoid(q_gate.narrow(2, d, d));
  }
  return apply_linear(out_sHD.flatten(1), weights.o_weight, weights.o_bias);
}

// Self-attention whose projections overlap the exchange of heads. This rank norms, rotates and
// attends its own heads of all exchanged tokens.
at::Tensor overlapped_self_attention(const ModelConfig& config, const LayerWeights& weights,
                                     const AttentionSpec& spec, const at::Tensor& normed_sE,
                                     const RopeTables& rope, OverlappedAttention& attention) {
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
  return attention.project_out(attention.attend_heads(spec, heads),
                               {weights.o_weight, weights.o_bias});
}

}  // namespace

std::vector<LayerPart> softmax_attention_parts(const ModelConfig& config) {
  const int64_t e = config.hidden_size, d = config.head_dim;
  const int64_t out = config.num_attention_heads * d, kv = config.num_key_value_heads * d;
  const int64_t q = config.attention.gated ? 2 * out : out;
  std::vector<LayerPart> parts{{&LayerWeights::qkv_weight,
                                {q + 2 * kv, e},
                                {{"self_attn.q_proj.weight", {q, e}},
                                 {"self_attn.k_proj.weight", {kv, e}},
                                 {"self_attn.v_proj.weight", {kv, e}}}}};
  if (config.attention.qkv_bias) {
    parts.push_back({&LayerWeights::qkv_bias,
                     {q + 2 * kv},
                     {{"self_attn.q_proj.bias", {q}},
                      {"self_attn.k_proj.bias", {kv}},
                      {"self_attn.v_proj.bias", {kv}}}});
  }
  parts.push_back(single_part(&LayerWeights::o_weight, "self_attn.o_proj.weight", {e, out}));
  if (config.attention.o_bias) {
    parts.push_back(single_part(&LayerWeights::o_bias, "self_attn.o_proj.bias", {e}));
  }
  if (config.attention.sinks) {
    parts.push_back(
        single_part(&LayerWeights::sinks, "self_attn.sinks", {config.num_attention_heads}));
  }
  if (config.attention.qk_norm) {
    parts.push_back(single_part(&LayerWeights::q_norm, "self_attn.q_norm.weight", {d}));
    parts.push_back(single_part(&LayerWeights::k_norm, "self_attn.k_norm.weight", {d}));
  }
  return parts;
}

at::Tensor softmax_attention(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                             const at::Tensor& normed_sE, const LayerContext& context) {
  const BlockSpec block = config.block(layer);
  AttentionSpec spec{layer, block.window, config.softmax_scale(), {}};
  if (weights.sinks.defined()) {
    const bool doubles = normed_sE.scalar_type() == at::kDouble;
    spec.sinks_H = leaf_value(weights.sinks, doubles ? at::kDouble : at::kFloat);
  }
  const RopeTables& rope = block.local_rope ? context.local_rope : context.rope;
  if (OverlappedAttention* overlapped = context.attention.overlapped()) {
    return overlapped_self_attention(config, weights, spec, normed_sE, rope, *overlapped);
  }
  if (config.attention.gated || config.attention.rotary_dim > 0) {
    return gated_attention(config, weights, spec, normed_sE, rope, context.attention);
  }
  const int64_t s = normed_sE.size(0), d = config.head_dim;
  const int64_t h = config.num_attention_heads, k = config.num_key_value_heads;
  const at::Tensor qkv = apply_linear(normed_sE, weights.qkv_weight, weights.qkv_bias);
  const RotatedHeads heads =
      norm_and_rotate(qkv.view({s, h + 2 * k, d}), {h, k}, head_norms(config, weights), rope);
  const at::Tensor out_sHD = context.attention.attend(spec, heads.q_sHD, heads.k_sKD, heads.v);
  return apply_linear(out_sHD.reshape({s, h * d}), weights.o_weight, weights.o_bias);
}

}  // namespace ringside::engine
