#include "engine/models/latent_attention.h"

#include <ATen/ATen.h>

#include <cmath>

#include "engine/nn/linear.h"
#include "engine/nn/qk_norm_rope.h"
#include "engine/nn/rms_norm.h"
#include "engine/params/quantised_matrix.h"

namespace ringside::engine {
namespace {

// Of the norms of the latents. transformers leaves it at its default, whatever rms_norm_eps says.
constexpr double kLatentNormEps = 1e-6;

// Shapes: H = heads, C = latent, N and R = components of a head without and with RoPE, V = those of
// a value.
struct Latents {
  at::Tensor latent_sC;  // normed
  at::Tensor q_nope_sHN;
  at::Tensor q_rope_sHR;
  at::Tensor k_rope_s1R;
};

at::Tensor latent_norm(const ModelConfig& config, const at::Tensor& x, const Weight& weight) {
  return rms_norm(x, weight, {kLatentNormEps, config.fp32_norms});
}

at::Tensor project_queries(const ModelConfig& config, const LayerWeights& weights,
                           const at::Tensor& normed_sE) {
  if (!weights.q_a_weight.defined()) {
    return apply_linear(normed_sE, weights.q_b_weight);
  }
  const at::Tensor latent = apply_linear(normed_sE, weights.q_a_weight, weights.q_a_bias);
  return apply_linear(latent_norm(config, latent, weights.q_a_norm), weights.q_b_weight);
}

// The pairs that RoPE turns lie side by side; norm_and_rotate() wants them half a head apart.
at::Tensor split_pairs(const at::Tensor& heads_sHR) {
  const int64_t s = heads_sHR.size(0), h = heads_sHR.size(1), r = heads_sHR.size(2);
  return heads_sHR.view({s, h, r / 2, 2}).transpose(2, 3).reshape({s, h, r});
}

Latents project(const ModelConfig& config, const LayerWeights& weights, const at::Tensor& normed_sE,
                const RopeTables& rope) {
  const LatentAttentionConfig& latent = config.latent;
  const int64_t s = normed_sE.size(0), h = config.num_attention_heads;
  const at::Tensor q_sHD =
      project_queries(config, weights, normed_sE).view({s, h, config.head_dim});
  const at::Tensor kv = apply_linear(normed_sE, weights.kv_a_weight, weights.kv_a_bias);
  const at::Tensor k_rope_s1R = kv.narrow(1, latent.kv_rank, latent.rope_dim).unsqueeze(1);
  at::Tensor turned = at::cat({q_sHD.narrow(2, latent.nope_dim, latent.rope_dim), k_rope_s1R}, 1);
  if (latent.rope_interleaved) {
    turned = split_pairs(turned);
  }
  const RotatedHeads rotated = norm_and_rotate(turned, {h, 1}, {}, rope);
  return {latent_norm(config, kv.narrow(1, 0, latent.kv_rank).contiguous(), weights.kv_a_norm),
          q_sHD.narrow(2, 0, latent.nope_dim), rotated.q_sHD, rotated.k_sKD};
}

// The softmax of YaRN is sharper by this factor.
double score_factor(const ModelConfig& config) {
  const auto* yarn = std::get_if<YarnRope>(&config.rope_scaling);
  if (yarn == nullptr || yarn->mscale_all_dim.value_or(0.0) == 0.0 || yarn->factor <= 1.0) {
    return 1.0;
  }
  const double magnitude = 0.1 * *yarn->mscale_all_dim * std::log(yarn->factor) + 1.0;
  return magnitude * magnitude;
}

AttentionSpec attention_spec(const ModelConfig& config, int64_t layer) {
  return {layer, 0, config.softmax_scale() * score_factor(config), {}};
}

// Attention with keys and values of every head. Returns [s, H, V].
at::Tensor attend_heads(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                        const Latents& in, AttentionBackend& attention) {
  const LatentAttentionConfig& latent = config.latent;
  const int64_t s = in.latent_sC.size(0), h = config.num_attention_heads;
  const at::Tensor kv = apply_linear(in.latent_sC, weights.kv_b_weight)
                            .view({s, h, latent.nope_dim + latent.value_dim});
  const at::Tensor q = at::cat({in.q_nope_sHN, in.q_rope_sHR}, 2);
  const at::Tensor k =
      at::cat({kv.narrow(2, 0, latent.nope_dim), in.k_rope_s1R.expand({s, h, latent.rope_dim})}, 2);
  const at::Tensor v = at::constant_pad_nd(kv.narrow(2, latent.nope_dim, latent.value_dim),
                                           {0, config.head_dim - latent.value_dim});
  return attention.attend(attention_spec(config, layer), q, k, v).narrow(2, 0, latent.value_dim);
}

// The matrix as it acts, outside autograd.
at::Tensor effective_matrix(const Weight& weight, at::ScalarType dtype) {
  const at::Tensor plain = weight.packed ? weight.packed->unpack(dtype) : weight.value;
  if (weight.low_rank == nullptr) {
    return plain;
  }
  const LowRank& low_rank = *weight.low_rank;
  const at::Tensor matrix = plain.clone();
  const std::vector<at::Tensor> a =
      low_rank.a.chunk(static_cast<int64_t>(low_rank.parts.size()), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto& [row, b, leaf] = low_rank.parts[i];
    matrix.narrow(0, row, b.size(0)).addmm_(b, a[i], 1.0, low_rank.scale);
  }
  return matrix;
}

// Attention on the latents themselves: the up-projection of keys is applied to the queries, that of
// values to the result. Returns [s, H, V].
at::Tensor attend_latents(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                          const Latents& in, AttentionBackend& attention) {
  const LatentAttentionConfig& latent = config.latent;
  const at::Tensor up_HNC =
      effective_matrix(weights.kv_b_weight, in.latent_sC.scalar_type())
          .view({config.num_attention_heads, latent.nope_dim + latent.value_dim, latent.kv_rank});
  const at::Tensor k_up = up_HNC.narrow(1, 0, latent.nope_dim);
  const at::Tensor v_up = up_HNC.narrow(1, latent.nope_dim, latent.value_dim);
  const at::Tensor q_latent = at::bmm(in.q_nope_sHN.transpose(0, 1), k_up).transpose(0, 1);
  const at::Tensor q = at::cat({q_latent, in.q_rope_sHR}, 2);
  const at::Tensor row = at::cat({in.latent_sC.unsqueeze(1), in.k_rope_s1R}, 2);
  const at::Tensor out =
      attention.attend(attention_spec(config, layer), q, row, row).narrow(2, 0, latent.kv_rank);
  return at::bmm(out.transpose(0, 1), v_up.transpose(1, 2)).transpose(0, 1);
}

}  // namespace

std::vector<LayerPart> latent_attention_parts(const ModelConfig& config) {
  const LatentAttentionConfig& latent = config.latent;
  const int64_t e = config.hidden_size, h = config.num_attention_heads;
  const int64_t q = h * config.head_dim, kv = latent.kv_rank + latent.rope_dim;
  const int64_t up = h * (latent.nope_dim + latent.value_dim);
  std::vector<LayerPart> parts;
  const auto add = [&](Weight LayerWeights::*target, const char* name, std::vector<int64_t> shape) {
    parts.push_back(single_part(target, name, shape));
  };
  if (latent.q_rank > 0) {
    add(&LayerWeights::q_a_weight, "self_attn.q_a_proj.weight", {latent.q_rank, e});
    if (latent.bias) {
      add(&LayerWeights::q_a_bias, "self_attn.q_a_proj.bias", {latent.q_rank});
    }
    add(&LayerWeights::q_a_norm, "self_attn.q_a_layernorm.weight", {latent.q_rank});
    add(&LayerWeights::q_b_weight, "self_attn.q_b_proj.weight", {q, latent.q_rank});
  } else {
    add(&LayerWeights::q_b_weight, "self_attn.q_proj.weight", {q, e});
  }
  add(&LayerWeights::kv_a_weight, "self_attn.kv_a_proj_with_mqa.weight", {kv, e});
  if (latent.bias) {
    add(&LayerWeights::kv_a_bias, "self_attn.kv_a_proj_with_mqa.bias", {kv});
  }
  add(&LayerWeights::kv_a_norm, "self_attn.kv_a_layernorm.weight", {latent.kv_rank});
  add(&LayerWeights::kv_b_weight, "self_attn.kv_b_proj.weight", {up, latent.kv_rank});
  add(&LayerWeights::o_weight, "self_attn.o_proj.weight", {e, h * latent.value_dim});
  if (latent.bias) {
    add(&LayerWeights::o_bias, "self_attn.o_proj.bias", {e});
  }
  return parts;
}

at::Tensor latent_attention(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                            const at::Tensor& normed_sE, const LayerContext& context) {
  TORCH_CHECK(context.attention.overlapped() == nullptr,
              "latent attention cannot overlap its projections with the exchange of heads "
              "(asynchronous Ulysses)");
  const Latents in = project(config, weights, normed_sE, context.rope);
  const at::Tensor out_sHV = context.attention.attends_latents()
                                 ? attend_latents(config, weights, layer, in, context.attention)
                                 : attend_heads(config, weights, layer, in, context.attention);
  return apply_linear(
      out_sHV.reshape({normed_sE.size(0), config.num_attention_heads * config.latent.value_dim}),
      weights.o_weight, weights.o_bias);
}

}  // namespace ringside::engine
