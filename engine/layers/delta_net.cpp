#include "engine/layers/delta_net.h"

#include <ATen/ATen.h>

#include "engine/layers/delta_net_cost.h"
#include "engine/nn/leaf_value.h"
#include "engine/nn/recurrent_backend.h"

namespace ringside::engine {
namespace {

// The projected input by head group.
struct Projected {
  at::Tensor channels_sGC;
  at::Tensor gate_sGo;  // of the output
};

// [s, all q | all k | all v] or the same with weights in place of rows -> one group after another.
at::Tensor by_group(const sp::StateShape& shape, const at::Tensor& flat, int64_t dim) {
  const int64_t g = shape.key_heads, keys = g * shape.key_dim;
  const auto groups = [&](int64_t begin, int64_t channels) {
    return flat.narrow(dim, begin, g * channels).unflatten(dim, {g, channels});
  };
  return at::cat({groups(0, shape.key_dim), groups(keys, shape.key_dim),
                  groups(2 * keys, shape.out_channels())},
                 dim + 1);
}

// Qwen3-Next: q, k, v and z of each group side by side, then b and a of each group.
Projected split_grouped(const sp::StateShape& shape, const at::Tensor& projected_sP) {
  const int64_t g = shape.key_heads, per_group = shape.values_per_group();
  const int64_t conv = shape.conv_channels(), out = shape.out_channels();
  const at::Tensor qkvz = projected_sP.narrow(1, 0, g * (conv + out)).unflatten(1, {g, conv + out});
  const at::Tensor gates =
      projected_sP.narrow(1, g * (conv + out), g * 2 * per_group).unflatten(1, {g, 2 * per_group});
  return {at::cat({qkvz.narrow(2, 0, conv), gates}, 2), qkvz.narrow(2, conv, out)};
}

// Qwen3.5: all q, all k, all v, all z, all b, all a.
Projected split_flat(const sp::StateShape& shape, const at::Tensor& projected_sP) {
  const int64_t g = shape.key_heads, per_group = shape.values_per_group();
  const int64_t conv = g * shape.conv_channels(), out = g * shape.out_channels();
  const auto groups = [&](int64_t begin, int64_t channels) {
    return projected_sP.narrow(1, begin, g * channels).unflatten(1, {g, channels});
  };
  return {at::cat({by_group(shape, projected_sP.narrow(1, 0, conv), 1),
                   groups(conv + out, per_group), groups(conv + out + g * per_group, per_group)},
                  2),
          groups(conv, shape.out_channels())};
}

std::vector<Projection> input_projections(const DeltaNetConfig& net) {
  const sp::StateShape& shape = net.shape;
  const int64_t g = shape.key_heads, h = shape.value_heads;
  const int64_t conv = g * shape.conv_channels(), out = g * shape.out_channels();
  if (net.grouped_projections) {
    return {{"linear_attn.in_proj_qkvz", conv + out}, {"linear_attn.in_proj_ba", 2 * h}};
  }
  return {{"linear_attn.in_proj_qkv", conv},
          {"linear_attn.in_proj_z", out},
          {"linear_attn.in_proj_b", h},
          {"linear_attn.in_proj_a", h}};
}

}  // namespace

DeltaNet::DeltaNet(const ModelConfig& config, int64_t layer, ParamTable& table)
    : layer_(layer),
      hidden_(config.hidden_size),
      fp32_norms_(config.fp32_norms),
      net_(config.delta_net),
      in_(table, input_projections(net_), config.hidden_size),
      conv_(
          table.add("linear_attn.conv1d.weight",
                    {net_.shape.key_heads * net_.shape.conv_channels(), 1, net_.shape.conv_taps})),
      log_decay_(table.add("linear_attn.A_log", {net_.shape.value_heads})),
      decay_bias_(table.add("linear_attn.dt_bias", {net_.shape.value_heads})),
      // This norm's factor is its weight, whatever the layer's others are.
      norm_(table, "linear_attn.norm.weight", net_.shape.value_dim,
            {config.rms_norm_eps, config.fp32_norms}),
      out_(table, {{"linear_attn.out_proj", config.hidden_size}},
           net_.shape.key_heads * net_.shape.out_channels()) {}

at::Tensor DeltaNet::forward(const at::Tensor& normed_sE, const LayerPass& pass) const {
  RecurrentBackend* backend = pass.attention.recurrent();
  TORCH_CHECK(backend != nullptr, "delta net: layer ", layer_,
              " needs a backend that passes states, this one has keys and values alone");
  const sp::StateShape& shape = net_.shape;
  const at::Tensor projected = in_(normed_sE, pass);
  const Projected input =
      net_.grouped_projections ? split_grouped(shape, projected) : split_flat(shape, projected);
  const std::vector<int64_t> heads{shape.key_heads, shape.values_per_group()};
  const at::Tensor mixed =
      backend->mix(layer_, {shape, input.channels_sGC,
                            by_group(shape, leaf_value(pass.weights[conv_]).squeeze(1), 0),
                            leaf_value(pass.weights[log_decay_]).view(heads),
                            leaf_value(pass.weights[decay_bias_]).view(heads)});
  const int64_t s = normed_sE.size(0);
  const std::vector<int64_t> by_head{s, shape.value_heads, shape.value_dim};
  const at::Tensor normed = norm_(mixed.reshape(by_head), pass);
  const bool doubles = normed.scalar_type() == at::kDouble && !fp32_norms_;
  const auto sums = doubles ? at::kDouble : at::kFloat;
  const at::Tensor gated =
      (normed * at::silu(input.gate_sGo.reshape(by_head).to(sums))).to(normed.scalar_type());
  return out_(gated.flatten(1), pass);
}

Support DeltaNet::supports(Feature feature) const {
  switch (feature) {
    case Feature::kAdapters:
      return Support::no("models with gated delta nets have none; train all parameters");
    case Feature::kPackedBase:
      return Support::no("gated delta nets cannot be quantised");
    case Feature::kAsyncUlysses:
      return Support::no("models with gated delta nets exchange heads synchronously");
    case Feature::kRoutes:
    case Feature::kRouterCorrections:
      break;
  }
  return Support::no("gated delta nets have no experts");
}

TokenFlow DeltaNet::flow() const { return {net_.shape.key_heads, 0, {}, net_.shape}; }

Cost DeltaNet::cost(const MixerShape& shape) const {
  Cost cost = delta_net_cost(net_, shape);
  cost.gradients = hidden_ * net_.shape.value_heads * net_.shape.value_dim;
  return cost;
}

MixerWork DeltaNet::work(const RankGrid& grid) const { return delta_net_work(net_.shape, grid); }

}  // namespace ringside::engine
