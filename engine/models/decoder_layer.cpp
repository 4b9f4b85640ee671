#include "engine/models/decoder_layer.h"

#include <ATen/ATen.h>

#include <iterator>
#include <string>
#include <utility>

#include "engine/models/gated_mlp.h"
#include "engine/models/mixture.h"
#include "engine/models/softmax_attention.h"
#include "engine/nn/rms_norm.h"

namespace ringside::engine {
namespace {

void append(std::vector<LayerPart>& parts, std::vector<LayerPart> more) {
  std::ranges::move(more, std::back_inserter(parts));
}

// Every weight of a layer, in the order of its unit.
std::vector<LayerPart> parts_of(const ModelConfig& config, int64_t layer, LayerParts which) {
  const BlockSpec block = config.block(layer);
  const int64_t e = config.hidden_size;
  std::vector<LayerPart> parts = softmax_attention_parts(config);
  append(parts, block.channel_mixer == ChannelMixer::kExperts ? mixture_parts(config)
                                                              : gated_mlp_parts(config));
  parts.push_back(single_part(&LayerWeights::input_norm, "input_layernorm.weight", {e}));
  parts.push_back(
      single_part(&LayerWeights::post_attention_norm, "post_attention_layernorm.weight", {e}));
  if (which == LayerParts::kWithoutProjections) {
    std::erase_if(parts, [](const LayerPart& part) { return is_projection(part.params[0].name); });
  }
  return parts;
}

}  // namespace

std::vector<ParamSpec> decoder_layer_specs(const ModelConfig& config, int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  std::vector<ParamSpec> specs;
  for (LayerPart& part : parts_of(config, layer, LayerParts::kAll)) {
    for (ParamSpec& spec : part.params) {
      specs.push_back({prefix + spec.name, std::move(spec.shape)});
    }
  }
  return specs;
}

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

LayerWeights materialize_layer(const ModelConfig& config, int64_t layer, const ParamUnit& unit,
                               at::ScalarType compute_dtype, LayerParts which) {
  const UnitShapes cut = layer_shapes(config, layer, compute_dtype, which);
  return layer_weights(config, layer, unit.materialize(cut.dtype, cut.shapes), which);
}

at::Tensor decoder_layer(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                         const at::Tensor& hidden_sE, const LayerContext& context) {
  const double eps = config.rms_norm_eps;
  const ResidualNorm in = residual_rms_norm(hidden_sE, weights.input_norm, eps, config.fp32_norms);
  const at::Tensor mixed = softmax_attention(config, weights, layer, in.normed, context);
  const ResidualNorm attended =
      add_rms_norm(in.residual, mixed, weights.post_attention_norm, eps, config.fp32_norms);
  return attended.residual + (config.has_experts(layer)
                                  ? mixture(config, weights, attended.normed, context)
                                  : gated_mlp(weights, attended.normed, context.tiles));
}

}  // namespace ringside::engine
