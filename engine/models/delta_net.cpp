#include "engine/models/delta_net.h"

#include <ATen/ATen.h>

#include "engine/nn/leaf_value.h"
#include "engine/nn/linear.h"
#include "engine/nn/recurrent_backend.h"
#include "engine/nn/rms_norm.h"

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

}  // namespace

std::vector<LayerPart> delta_net_parts(const ModelConfig& config) {
  const sp::StateShape& shape = config.delta_net.shape;
  const int64_t e = config.hidden_size, g = shape.key_heads, h = shape.value_heads;
  const int64_t conv = g * shape.conv_channels(), out = g * shape.out_channels();
  LayerPart in{&LayerWeights::delta_in, {conv + out + 2 * h, e}, {}};
  if (config.delta_net.grouped_projections) {
    in.params = {{"linear_attn.in_proj_qkvz.weight", {conv + out, e}},
                 {"linear_attn.in_proj_ba.weight", {2 * h, e}}};
  } else {
    in.params = {{"linear_attn.in_proj_qkv.weight", {conv, e}},
                 {"linear_attn.in_proj_z.weight", {out, e}},
                 {"linear_attn.in_proj_b.weight", {h, e}},
                 {"linear_attn.in_proj_a.weight", {h, e}}};
  }
  return {in,
          single_part(&LayerWeights::delta_conv, "linear_attn.conv1d.weight",
                      {conv, 1, shape.conv_taps}),
          single_part(&LayerWeights::delta_log_decay, "linear_attn.A_log", {h}),
          single_part(&LayerWeights::delta_decay_bias, "linear_attn.dt_bias", {h}),
          single_part(&LayerWeights::delta_norm, "linear_attn.norm.weight", {shape.value_dim}),
          single_part(&LayerWeights::delta_out, "linear_attn.out_proj.weight", {e, out})};
}

at::Tensor delta_net(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                     const at::Tensor& normed_sE, const LayerContext& context) {
  RecurrentBackend* backend = context.attention.recurrent();
  TORCH_CHECK(backend != nullptr, "delta net: layer ", layer,
              " needs a backend that passes states, this one has keys and values alone");
  const sp::StateShape& shape = config.delta_net.shape;
  const at::Tensor projected = apply_linear(normed_sE, weights.delta_in);
  const Projected input = config.delta_net.grouped_projections ? split_grouped(shape, projected)
                                                               : split_flat(shape, projected);
  const std::vector<int64_t> heads{shape.key_heads, shape.values_per_group()};
  const at::Tensor mixed =
      backend->mix(layer, {shape, input.channels_sGC,
                           by_group(shape, leaf_value(weights.delta_conv).squeeze(1), 0),
                           leaf_value(weights.delta_log_decay).view(heads),
                           leaf_value(weights.delta_decay_bias).view(heads)});
  const int64_t s = normed_sE.size(0);
  const std::vector<int64_t> by_head{s, shape.value_heads, shape.value_dim};
  // This norm's factor is its weight, whatever the layer's others are.
  const at::Tensor normed = rms_norm(mixed.reshape(by_head), weights.delta_norm,
                                     {config.rms_norm_eps, config.fp32_norms});
  const bool doubles = normed.scalar_type() == at::kDouble && !config.fp32_norms;
  const auto sums = doubles ? at::kDouble : at::kFloat;
  const at::Tensor gated =
      (normed * at::silu(input.gate_sGo.reshape(by_head).to(sums))).to(normed.scalar_type());
  return apply_linear(gated.flatten(1), weights.delta_out);
}

}  // namespace ringside::engine
