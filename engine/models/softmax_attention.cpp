#include "engine/models/softmax_attention.h"

#include <ATen/ATen.h>

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

}  // namespace

std::vector<LayerPart> softmax_attention_parts(const ModelConfig& config) {
  const int64_t e = config.hidden_size, d = config.head_dim;
  const int64_t q = config.num_attention_heads * d, kv = config.num_key_value_heads * d;
  std::vector<LayerPart> parts{{&LayerWeights::qkv_weight,
                                {q + 2 * kv, e},
                                {{"self_attn.q_proj.weight", {q, e}},
                                 {"self_attn.k_proj.weight", {kv, e}},
                                 {"self_attn.v_proj.weight", {kv, e}}}}};
  if (config.qkv_bias) {
    parts.push_back({&LayerWeights::qkv_bias,
                     {q + 2 * kv},
                     {{"self_attn.q_proj.bias", {q}},
                      {"self_attn.k_proj.bias", {kv}},
                      {"self_attn.v_proj.bias", {kv}}}});
  }
  parts.push_back(single_part(&LayerWeights::o_weight, "self_attn.o_proj.weight", {e, q}));
  if (config.o_bias) {
    parts.push_back(single_part(&LayerWeights::o_bias, "self_attn.o_proj.bias", {e}));
  }
  if (config.qk_norm) {
    parts.push_back(single_part(&LayerWeights::q_norm, "self_attn.q_norm.weight", {d}));
    parts.push_back(single_part(&LayerWeights::k_norm, "self_attn.k_norm.weight", {d}));
  }
  return parts;
}

at::Tensor softmax_attention(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                             const at::Tensor& normed_sE, const LayerContext& context) {
  if (OverlappedAttention* overlapped = context.attention.overlapped()) {
    return overlapped_self_attention(config, weights, normed_sE, context.rope, *overlapped);
  }
  const int64_t s = normed_sE.size(0), d = config.head_dim;
  const int64_t h = config.num_attention_heads, k = config.num_key_value_heads;
  const at::Tensor qkv = apply_linear(normed_sE, weights.qkv_weight, weights.qkv_bias);
  const RotatedHeads heads = norm_and_rotate(qkv.view({s, h + 2 * k, d}), {h, k},
                                             head_norms(config, weights), context.rope);
  const at::Tensor out_sHD = context.attention.attend(layer, heads.q_sHD, heads.k_sKD, heads.v);
  return apply_linear(out_sHD.reshape({s, h * d}), weights.o_weight, weights.o_bias);
}

}  // namespace ringside::engine
