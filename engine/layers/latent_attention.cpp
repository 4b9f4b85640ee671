#include "engine/layers/latent_attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "engine/ops/qk_norm_rope.h"

namespace ringside::engine {
namespace {

// Of the norms of the latents. transformers leaves it at its default, whatever rms_norm_eps says.
constexpr double kLatentNormEps = 1e-6;

const ModelConfig& checked(const ModelConfig& c) {
  const LatentAttentionConfig& latent = c.latent;
  TORCH_CHECK(latent.q_rank >= 0 && latent.nope_dim > 0 && latent.rope_dim > 0 &&
                  latent.value_dim > 0 && latent.value_dim <= c.head_dim &&
                  latent.nope_dim + latent.rope_dim == c.head_dim &&
                  c.num_key_value_heads == c.num_attention_heads,
              "model config: latent attention with ", latent.nope_dim, " + ", latent.rope_dim,
              " components of ", c.head_dim, ", values of ", latent.value_dim, " and ",
              c.num_key_value_heads, " key heads for ", c.num_attention_heads, " heads");
  return c;
}

NormOptions latent_norm(const ModelConfig& config) { return {kLatentNormEps, config.fp32_norms}; }

Bias bias(const LatentAttentionConfig& latent) { return latent.bias ? Bias::kAll : Bias::kNone; }

std::optional<Linear> query_down(ParamTable& table, const ModelConfig& config) {
  const LatentAttentionConfig& latent = config.latent;
  if (latent.q_rank == 0) {
    return std::nullopt;
  }
  return Linear(table, {{"self_attn.q_a_proj", latent.q_rank}}, config.hidden_size, bias(latent));
}

std::optional<Norm> query_norm(ParamTable& table, const ModelConfig& config) {
  if (config.latent.q_rank == 0) {
    return std::nullopt;
  }
  return Norm(table, "self_attn.q_a_layernorm.weight", config.latent.q_rank, latent_norm(config));
}

sp::HeadShape own_heads(const ModelConfig& config, const TensorPlace& place) {
  const sp::HeadShape whole{config.num_attention_heads, config.num_attention_heads,
                            config.head_dim};
  return place.ranks == 1 ? whole : sp::part_of_heads(whole, place.ranks, place.rank);
}

TensorCut cut_of_heads(CutAlong along, const ModelConfig& config, const TensorPlace& place,
                       int64_t each) {
  return place.ranks == 1
             ? TensorCut{}
             : cut_items(along, even_items(config.num_attention_heads, place.ranks), each);
}

// Queries without a latent are projected from the hidden state.
Linear query_up(ParamTable& table, const ModelConfig& config) {
  const bool has_latent = config.latent.q_rank > 0;
  return {table,
          {{has_latent ? "self_attn.q_b_proj" : "self_attn.q_proj",
            config.num_attention_heads * config.head_dim,
            cut_of_heads(CutAlong::kRows, config, table.place(), config.head_dim)}},
          has_latent ? config.latent.q_rank : config.hidden_size};
}

Linear key_value_up(ParamTable& table, const ModelConfig& config) {
  const int64_t each = config.latent.nope_dim + config.latent.value_dim;
  return {table,
          {{"self_attn.kv_b_proj", config.num_attention_heads * each,
            cut_of_heads(CutAlong::kRows, config, table.place(), each)}},
          config.latent.kv_rank};
}

// The pairs that RoPE turns lie side by side; norm_and_rotate() wants them half a head apart.
at::Tensor split_pairs(const at::Tensor& heads_sHR) {
  const int64_t s = heads_sHR.size(0), h = heads_sHR.size(1), r = heads_sHR.size(2);
  return heads_sHR.view({s, h, r / 2, 2}).transpose(2, 3).reshape({s, h, r});
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

}  // namespace

LatentAttention::LatentAttention(const ModelConfig& config, int64_t layer, ParamTable& table)
    : layer_(layer),
      hidden_(config.hidden_size),
      shape_(own_heads(config, table.place())),
      heads_(shape_.query_heads().size()),
      head_dim_(config.head_dim),
      softmax_scale_(config.softmax_scale() * score_factor(config)),
      latent_(checked(config).latent),
      q_a_(query_down(table, config)),
      q_a_norm_(query_norm(table, config)),
      q_b_(query_up(table, config)),
      kv_a_(table, {{"self_attn.kv_a_proj_with_mqa", latent_.kv_rank + latent_.rope_dim}},
            config.hidden_size, bias(latent_)),
      kv_a_norm_(table, "self_attn.kv_a_layernorm.weight", latent_.kv_rank, latent_norm(config)),
      kv_b_(key_value_up(table, config)),
      o_(table,
         {{"self_attn.o_proj", config.hidden_size,
           cut_of_heads(CutAlong::kColumns, config, table.place(), latent_.value_dim)}},
         config.num_attention_heads * latent_.value_dim, bias(latent_)) {}

LatentAttention::Down LatentAttention::project_down(const at::Tensor& normed_sE,
                                                    const LayerPass& pass) const {
  const at::Tensor query = q_a_ ? (*q_a_norm_)((*q_a_)(normed_sE, pass), pass) : normed_sE;
  const at::Tensor kv = kv_a_(normed_sE, pass);
  return {query, kv_a_norm_(kv.narrow(1, 0, latent_.kv_rank).contiguous(), pass),
          kv.narrow(1, latent_.kv_rank, latent_.rope_dim)};
}

LatentAttention::Down LatentAttention::gathered(const Down& own, const LayerPass& pass) const {
  if (!pass.rows.is_cut()) {
    return own;
  }
  const at::Tensor all =
      gather_rows(at::cat({own.query, own.latent_sC, own.k_rope_sR}, 1), pass.rows);
  const std::vector<at::Tensor> parts =
      all.split_with_sizes({own.query.size(1), latent_.kv_rank, latent_.rope_dim}, 1);
  return {parts[0], parts[1], parts[2]};
}

LatentAttention::Latents LatentAttention::turn(const Down& down, const at::Tensor& q_sHD,
                                               const LayerPass& pass) const {
  const int64_t h = heads_;
  at::Tensor turned = at::cat(
      {q_sHD.narrow(2, latent_.nope_dim, latent_.rope_dim), down.k_rope_sR.unsqueeze(1)}, 1);
  if (latent_.rope_interleaved) {
    turned = split_pairs(turned);
  }
  const RotatedHeads rotated = norm_and_rotate(turned, {h, 1}, {}, pass.ropes.global);
  return {down.latent_sC, q_sHD.narrow(2, 0, latent_.nope_dim), rotated.q_sHD, rotated.k_sKD};
}

at::Tensor LatentAttention::attend_heads(const Latents& in, const LayerPass& pass) const {
  const int64_t s = in.latent_sC.size(0), h = heads_;
  const at::Tensor kv =
      kv_b_(in.latent_sC, pass).view({s, h, latent_.nope_dim + latent_.value_dim});
  const at::Tensor q = at::cat({in.q_nope_sHN, in.q_rope_sHR}, 2);
  const at::Tensor k = at::cat(
      {kv.narrow(2, 0, latent_.nope_dim), in.k_rope_s1R.expand({s, h, latent_.rope_dim})}, 2);
  const at::Tensor v = at::constant_pad_nd(kv.narrow(2, latent_.nope_dim, latent_.value_dim),
                                           {0, head_dim_ - latent_.value_dim});
  return pass.attention.attend(spec(), q, k, v).narrow(2, 0, latent_.value_dim);
}

at::Tensor LatentAttention::attend_latents(const Latents& in, const LayerPass& pass) const {
  const at::Tensor up_HNC =
      kv_b_.effective_matrix(pass, in.latent_sC.scalar_type())
          .view({heads_, latent_.nope_dim + latent_.value_dim, latent_.kv_rank});
  const at::Tensor k_up = up_HNC.narrow(1, 0, latent_.nope_dim);
  const at::Tensor v_up = up_HNC.narrow(1, latent_.nope_dim, latent_.value_dim);
  const at::Tensor q_latent = at::bmm(in.q_nope_sHN.transpose(0, 1), k_up).transpose(0, 1);
  const at::Tensor q = at::cat({q_latent, in.q_rope_sHR}, 2);
  const at::Tensor row = at::cat({in.latent_sC.unsqueeze(1), in.k_rope_s1R}, 2);
  const at::Tensor out = pass.attention.attend(spec(), q, row, row).narrow(2, 0, latent_.kv_rank);
  return at::bmm(out.transpose(0, 1), v_up.transpose(1, 2)).transpose(0, 1);
}

at::Tensor LatentAttention::forward(const at::Tensor& normed_sE, const LayerPass& pass) const {
  TORCH_CHECK(pass.attention.overlapped() == nullptr,
              "latent attention cannot overlap its projections with the exchange of heads "
              "(asynchronous Ulysses)");
  const Down down = gathered(project_down(normed_sE, pass), pass);
  const int64_t s = down.query.size(0);
  const at::Tensor q_sO = q_b_(down.query, pass);
  if (heads_ == 0) {  // the output of no components takes part in the sums
    return o_.summed(o_(q_sO, pass), pass);
  }
  const Latents in = turn(down, q_sO.view({s, heads_, head_dim_}), pass);
  const at::Tensor out_sHV =
      pass.attention.attends_latents() ? attend_latents(in, pass) : attend_heads(in, pass);
  return o_.summed(o_(out_sHV.reshape({s, heads_ * latent_.value_dim}), pass), pass);
}

Support LatentAttention::supports(Feature feature) const {
  switch (feature) {
    case Feature::kAdapters:
    case Feature::kTensorCut:
      return Support::yes();
    case Feature::kPackedBase:
      return Support::no("latent attention cannot be quantised");
    case Feature::kAsyncUlysses:
      return Support::no(
          "latent attention cannot overlap its projections with the exchange of heads");
    case Feature::kRoutes:
    case Feature::kRouterCorrections:
      break;
  }
  return Support::no("attention has no experts");
}

TokenFlow LatentAttention::flow() const {
  return {heads_, /*window=*/0, KeptKeys{1, latent_.kv_rank + latent_.rope_dim, true}};
}

TensorWidths LatentAttention::tensor_widths() const {
  const int64_t query = latent_.q_rank > 0 ? latent_.q_rank : hidden_;
  return {query + latent_.kv_rank + latent_.rope_dim, hidden_};
}

MixerWork LatentAttention::work(const RankGrid& grid) const {
  return attention_work(shape_, /*window=*/0, grid);
}

// It saves each latent before and after its norm, what RoPE turned, and the inputs of attention and
// of the output projection. The tensors between are freed.
Cost LatentAttention::cost(const MixerShape& shape) const {
  const int64_t s = shape.tokens, d = head_dim_, compute = shape.compute;
  const int64_t ranks = (latent_.q_rank > 0 ? 2 * latent_.q_rank : 0) + 2 * latent_.kv_rank;
  // With tensor ranks those before the norms are of own rows, and what is gathered of all.
  const bool is_cut = shape.tensor_ranks > 1;
  const int64_t latents = shape.own_rows() * ((is_cut ? ranks / 2 : ranks) * compute +
                                              (latent_.q_rank > 0 ? 2 : 1) * shape.sums) +
                          (is_cut ? s * tensor_widths().gathered * compute : 0);
  const int64_t turned = s * (heads_ + 1) * latent_.rope_dim * compute;
  const int64_t joined = shape.share_tokens * 2 * shape.kv_heads * d * compute;
  const sp::HeadShape& heads = shape_;
  const int64_t inputs =
      exchanges(heads, shape) ? exchanged_inputs(heads, shape) : s * heads_ * d * compute + joined;
  return attention_cost(heads, shape,
                        latents + turned + inputs + s * heads_ * latent_.value_dim * compute);
}

}  // namespace ringside::engine
