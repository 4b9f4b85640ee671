#include "engine/layers/softmax_attention.h"

#include <ATen/ATen.h>

#include "engine/nn/leaf_value.h"

namespace ringside::engine {
namespace {

constexpr const char* kOverlapWithTensorRanks =
    "attention cannot overlap its projections with the exchange of heads (asynchronous Ulysses) "
    "and gather rows of tensor ranks";

// With an output gate the query projection has a gate for each query head, too.
int64_t query_dim(const ModelConfig& config) {
  return config.head_dim * (config.attention.gated ? 2 : 1);
}

int64_t query_outputs(const ModelConfig& config) {
  return config.num_attention_heads * query_dim(config);
}

int64_t kv_outputs(const ModelConfig& config) {
  return config.num_key_value_heads * config.head_dim;
}

sp::HeadShape whole_heads(const ModelConfig& config) {
  return {config.num_attention_heads, config.num_key_value_heads, config.head_dim};
}

sp::HeadShape own_heads(const ModelConfig& config, const TensorPlace& place) {
  const sp::HeadShape whole = whole_heads(config);
  return place.ranks == 1 ? whole : sp::part_of_heads(whole, place.ranks, place.rank);
}

bool shares_kv(const ModelConfig& config, const TensorPlace& place) {
  return place.ranks > 1 && sp::split_heads(whole_heads(config), place.ranks).kv_heads_shared;
}

// Of one tensor for all three: each rank's rows of the queries, of the keys and of the values.
TensorCut fused_cut(const ModelConfig& config, const sp::HeadSplit& split) {
  TensorCut cut;
  for (std::size_t t = 0; t < split.query_heads_of.size(); ++t) {
    std::vector<sp::Range>& rows = cut.of_part.emplace_back();
    const auto add = [&](int64_t first, const sp::Range& heads, int64_t each) {
      if (!heads.empty()) {
        rows.push_back({first + heads.begin * each, first + heads.end * each});
      }
    };
    add(0, split.query_heads_of[t], query_dim(config));
    add(query_outputs(config), split.kv_heads_of[t], config.head_dim);
    add(query_outputs(config) + kv_outputs(config), split.kv_heads_of[t], config.head_dim);
  }
  return cut;
}

// Queries, keys and values.
std::vector<Projection> whole_projections(const ModelConfig& config) {
  if (config.fused_projections) {
    return {{"self_attn.qkv_proj", query_outputs(config) + 2 * kv_outputs(config)}};
  }
  return {{"self_attn.q_proj", query_outputs(config)},
          {"self_attn.k_proj", kv_outputs(config)},
          {"self_attn.v_proj", kv_outputs(config)}};
}

// The same cut over tensor ranks; the queries alone where these share key/value heads. Those of one
// tensor stay whole then, which supports() refuses.
std::vector<Projection> qkv_projections(const ModelConfig& config, const TensorPlace& place) {
  std::vector<Projection> projections = whole_projections(config);
  if (place.ranks == 1) {
    return projections;
  }
  const sp::HeadSplit split = sp::split_heads(whole_heads(config), place.ranks);
  if (config.fused_projections) {
    projections[0].cut = split.kv_heads_shared ? TensorCut{} : fused_cut(config, split);
    return projections;
  }
  projections[0].cut = cut_items(CutAlong::kRows, split.query_heads_of, query_dim(config));
  if (split.kv_heads_shared) {
    projections.resize(1);
    return projections;
  }
  projections[1].cut = cut_items(CutAlong::kRows, split.kv_heads_of, config.head_dim);
  projections[2].cut = projections[1].cut;
  return projections;
}

// Whole, where tensor ranks share key/value heads.
std::optional<Linear> shared_projection(ParamTable& table, const char* module,
                                        const ModelConfig& config, Bias bias) {
  if (!shares_kv(config, table.place()) || config.fused_projections) {
    return std::nullopt;
  }
  return Linear(table, {{module, kv_outputs(config)}}, config.hidden_size, bias);
}

TensorCut cut_of_heads(CutAlong along, const ModelConfig& config, const TensorPlace& place,
                       int64_t each) {
  return place.ranks == 1
             ? TensorCut{}
             : cut_items(along, sp::split_heads(whole_heads(config), place.ranks).query_heads_of,
                         each);
}

Bias bias(bool biased) { return biased ? Bias::kAll : Bias::kNone; }

}  // namespace

SoftmaxAttention::SoftmaxAttention(const ModelConfig& config, int64_t layer, ParamTable& table)
    : layer_(layer),
      hidden_(config.hidden_size),
      window_(config.window(layer)),
      local_rope_(config.block(layer).local_rope),
      no_rope_(config.block(layer).no_rope),
      shape_(own_heads(config, table.place())),
      heads_(shape_.query_heads().size()),
      kv_heads_(shape_.kv_heads().size()),
      head_dim_(config.head_dim),
      softmax_scale_(config.softmax_scale()),
      norm_options_(config.norm_options()),
      options_(config.attention),
      fused_(config.fused_projections),
      shares_kv_(shares_kv(config, table.place())),
      qkv_(table, qkv_projections(config, table.place()), config.hidden_size,
           bias(config.attention.qkv_bias)),
      k_(shared_projection(table, "self_attn.k_proj", config, bias(config.attention.qkv_bias))),
      v_(shared_projection(table, "self_attn.v_proj", config, bias(config.attention.qkv_bias))),
      o_(table,
         {{"self_attn.o_proj", config.hidden_size,
           cut_of_heads(CutAlong::kColumns, config, table.place(), head_dim_)}},
         config.num_attention_heads * head_dim_, bias(config.attention.o_bias)) {
  if (options_.sinks) {
    sinks_ = table.add("self_attn.sinks", {config.num_attention_heads}, WeightPlace::kLayer,
                       cut_of_heads(CutAlong::kRows, config, table.place(), 1));
  }
  if (options_.qk_norm) {
    q_norm_.emplace(table, "self_attn.q_norm.weight", head_dim_, norm_options_);
    k_norm_.emplace(table, "self_attn.k_norm.weight", head_dim_, norm_options_);
  } else if (options_.joint_qk_norm) {
    q_norm_.emplace(table, "self_attn.q_norm.weight", heads_ * head_dim_, norm_options_);
    k_norm_.emplace(table, "self_attn.k_norm.weight", kv_heads_ * head_dim_, norm_options_);
  }
}

// RoPE turns component i with component i + D/2. With rotary_dim r it turns i with i + r/2 instead,
// i < r/2. So components are put in an order in which these pairs lie D/2 apart; scores of queries
// and keys in the same order are the same.
at::Tensor SoftmaxAttention::pair_components(const at::Tensor& x) const {
  const int64_t r = options_.rotary_dim, d = head_dim_, still = (d - r) / 2;
  if (r == 0 || r == d || !x.defined()) {
    return x;
  }
  return at::cat({x.narrow(-1, 0, r / 2), x.narrow(-1, r, still), x.narrow(-1, r / 2, r / 2),
                  x.narrow(-1, r + still, still)},
                 -1);
}

Weight SoftmaxAttention::pair_components(const Weight& norm) const {
  if (norm.value.is_same(norm.leaf)) {
    return pair_components(norm.value);
  }
  // A sharded unit's leaf has no values of its own.
  return {pair_components(norm.value), pair_components(leaf_value(norm, norm.leaf.scalar_type()))};
}

HeadNorms SoftmaxAttention::head_norms(const LayerPass& pass) const {
  if (!options_.qk_norm) {
    return {{}, {}, norm_options_};
  }
  return {pair_components(q_norm_->weight(pass)), pair_components(k_norm_->weight(pass)),
          norm_options_};
}

at::Tensor SoftmaxAttention::normed_together(const at::Tensor& x_sND,
                                             const std::optional<Norm>& norm,
                                             const LayerPass& pass) const {
  return options_.joint_qk_norm ? (*norm)(x_sND.flatten(1), pass).view_as(x_sND) : x_sND;
}

at::Tensor SoftmaxAttention::project(const at::Tensor& x_sE, const LayerPass& pass) const {
  if (!k_) {
    return qkv_(x_sE, pass);
  }
  const sp::Range heads = shape_.kv_heads();
  const sp::Range outputs{heads.begin * head_dim_, heads.end * head_dim_};
  return at::cat({qkv_(x_sE, pass), k_->some(x_sE, outputs, pass), v_->some(x_sE, outputs, pass)},
                 1);
}

at::Tensor SoftmaxAttention::gated(const at::Tensor& qkv, const AttentionSpec& spec,
                                   const LayerPass& pass) const {
  const int64_t d = head_dim_, h = heads_, k = kv_heads_;
  const int64_t q_dim = options_.gated ? 2 * d : d;
  const at::Tensor q_gate = qkv.narrow(1, 0, h * q_dim).unflatten(1, {h, q_dim});
  const at::Tensor keys = qkv.narrow(1, h * q_dim, k * d).unflatten(1, {k, d});
  const at::Tensor values = qkv.narrow(1, h * q_dim + k * d, k * d).unflatten(1, {k, d});
  const at::Tensor qk =
      pair_components(at::cat({normed_together(q_gate.narrow(2, 0, d), q_norm_, pass),
                               normed_together(keys, k_norm_, pass)},
                              1));
  const RotatedHeads heads = norm_and_rotate(qk, {h, k}, head_norms(pass), rope(pass));
  at::Tensor out_sHD = pass.attention.attend(spec, heads.q_sHD, heads.k_sKD, values);
  if (options_.gated) {
    out_sHD = out_sHD * at::sigmoid(q_gate.narrow(2, d, d));
  }
  return out_sHD.flatten(1);
}

at::Tensor SoftmaxAttention::plain(const at::Tensor& qkv, const AttentionSpec& spec,
                                   const LayerPass& pass) const {
  const int64_t s = qkv.size(0), d = head_dim_, h = heads_, k = kv_heads_;
  const RotatedHeads heads =
      norm_and_rotate(qkv.view({s, h + 2 * k, d}), {h, k}, head_norms(pass), rope(pass));
  const at::Tensor out_sHD = pass.attention.attend(spec, heads.q_sHD, heads.k_sKD, heads.v);
  return out_sHD.reshape({s, h * d});
}

at::Tensor SoftmaxAttention::overlapped(const at::Tensor& normed_sE, const AttentionSpec& spec,
                                        const LayerPass& pass,
                                        OverlappedAttention& attention) const {
  TORCH_CHECK(overlap_problem().empty(), overlap_problem());
  const std::vector<Linear::Part> qkv = qkv_.parts(pass), o = o_.parts(pass);
  auto heads = attention.project(normed_sE, {qkv[0].weight, qkv[0].bias},
                                 {qkv[1].weight, qkv[1].bias}, {qkv[2].weight, qkv[2].bias});
  const HeadCounts own{heads.q_ShD.size(1), heads.k_SkD.size(1)};
  const at::Tensor qk = pair_components(at::cat({heads.q_ShD, heads.k_SkD}, 1));
  const RotatedHeads rotated = norm_and_rotate(qk, own, head_norms(pass), rope(pass));
  heads.q_ShD = rotated.q_sHD;
  heads.k_SkD = rotated.k_sKD;
  return attention.project_out(attention.attend_heads(spec, heads), {o[0].weight, o[0].bias});
}

at::Tensor SoftmaxAttention::forward(const at::Tensor& normed_sE, const LayerPass& pass) const {
  AttentionSpec spec{layer_, window_, softmax_scale_, {}};
  if (sinks_) {
    const bool doubles = normed_sE.scalar_type() == at::kDouble;
    spec.sinks_H = leaf_value(pass.weights[*sinks_], doubles ? at::kDouble : at::kFloat);
  }
  if (OverlappedAttention* attention = pass.attention.overlapped()) {
    TORCH_CHECK(!pass.rows.is_cut(), kOverlapWithTensorRanks);
    return overlapped(normed_sE, spec, pass, *attention);
  }
  const at::Tensor qkv = project(gather_rows(normed_sE, pass.rows), pass);
  // A rank without a head has no keys either; its output of no components takes part in the sums.
  const bool has_parts = options_.gated || options_.rotary_dim > 0 || options_.joint_qk_norm;
  const at::Tensor out_sO = heads_ == 0 ? qkv
                            : has_parts ? gated(qkv, spec, pass)
                                        : plain(qkv, spec, pass);
  return o_.summed(o_(out_sO, pass), pass);
}

std::string SoftmaxAttention::overlap_problem() const {
  const char* kind = options_.gated           ? "gated attention"
                     : options_.joint_qk_norm ? "attention with a norm over all heads"
                     : fused_                 ? "attention with one tensor for q, k and v"
                                              : "";
  return *kind == '\0'
             ? ""
             : std::string(kind) + " cannot overlap its projections with the exchange of heads";
}

Support SoftmaxAttention::supports(Feature feature) const {
  switch (feature) {
    case Feature::kAsyncUlysses:
      return overlap_problem().empty() ? Support::yes() : Support::no(overlap_problem());
    case Feature::kRoutes:
    case Feature::kRouterCorrections:
      return Support::no("attention has no experts");
    case Feature::kTensorCut:
      return options_.joint_qk_norm
                 ? Support::no(
                       "attention with a norm over all heads would need a sum over tensor ranks")
             : fused_ && shares_kv_
                 ? Support::no(
                       "attention with one tensor for q, k and v needs as many tensor "
                       "ranks as divide its key/value heads")
                 : Support::yes();
    case Feature::kAdapters:
    case Feature::kPackedBase:
      break;
  }
  return Support::yes();
}

TokenFlow SoftmaxAttention::flow() const {
  return {heads_, window_, KeptKeys{kv_heads_, head_dim_}};
}

MixerWork SoftmaxAttention::work(const RankGrid& grid) const {
  return attention_work(shape_, window_, grid);
}

Cost SoftmaxAttention::cost(const MixerShape& shape) const {
  const int64_t s = shape.tokens, d = head_dim_, compute = shape.compute;
  // Where heads are turned in part, queries and keys are copied out of the projection, of which
  // nothing else stays; so they are in gated attention, with the gate's sigmoid, and the product
  // with it. A norm over all heads keeps the projection beside the copy.
  const bool joint = options_.joint_qk_norm;
  const bool copies = options_.gated || options_.rotary_dim > 0;
  const int64_t qkv = s * (heads_ + (copies && !joint ? 1 : 2) * kv_heads_) * d * compute;
  const int64_t gated = options_.gated ? 2 * s * heads_ * d * compute : 0;
  const int64_t joint_norms = joint ? s * ((heads_ + kv_heads_) * d * compute + 2 * shape.sums) : 0;
  const int64_t rotated =
      s * (heads_ + kv_heads_) * (d * compute + (options_.qk_norm ? shape.sums : 0));
  // Without an exchange the queries are a view of what was rotated; keys and values are joined.
  const int64_t joined = shape.share_tokens * 2 * shape.kv_heads * d * compute;
  const sp::HeadShape& heads = shape_;
  const int64_t inputs = exchanges(heads, shape)
                             ? exchanged_inputs(heads, shape) + exchanged_output(heads, shape) -
                                   s * (heads_ + kv_heads_) * d * compute
                             : joined;
  return attention_cost(heads, shape, qkv + gated + joint_norms + rotated + inputs);
}

}  // namespace ringside::engine
