#include "engine/models/decoder_layer.h"

#include <ATen/ATen.h>

#include <iterator>
#include <string>
#include <utility>

#include "engine/models/delta_net.h"
#include "engine/models/gated_mlp.h"
#include "engine/models/latent_attention.h"
#include "engine/models/mixture.h"
#include "engine/models/softmax_attention.h"
#include "engine/nn/rms_norm.h"

namespace ringside::engine {
namespace {

void append(std::vector<LayerPart>& parts, std::vector<LayerPart> more) {
  std::ranges::move(more, std::back_inserter(parts));
}

at::Tensor mix_tokens(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                      const at::Tensor& normed_sE, const LayerContext& context) {
  switch (config.block(layer).token_mixer) {
    case TokenMixer::kLatentAttention:
      return latent_attention(config, weights, layer, normed_sE, context);
    case TokenMixer::kGatedDelta:
      return delta_net(config, weights, layer, normed_sE, context);
    case TokenMixer::kSoftmaxAttention:
      break;
  }
  return softmax_attention(config, weights, layer, normed_sE, context);
}

std::vector<LayerPart> mixer_parts(const ModelConfig& config, TokenMixer mixer) {
  switch (mixer) {
    case TokenMixer::kLatentAttention:
      return latent_attention_parts(config);
    case TokenMixer::kGatedDelta:
      return delta_net_parts(config);
    case TokenMixer::kSoftmaxAttention:
      break;
  }
  return softmax_attention_parts(config);
}

// The weights that `which` names, in the order of their unit.
std::vector<LayerPart> parts_of(const ModelConfig& config, int64_t layer, LayerParts which) {
  const BlockSpec block = config.block(layer);
  const int64_t e = config.hidden_size;
  std::vector<LayerPart> parts = mixer_parts(config, block.token_mixer);
  append(parts, block.channel_mixer == ChannelMixer::kExperts ? mixture_parts(config)
                                                              : gated_mlp_parts(config));
  parts.push_back(single_part(&LayerWeights::input_norm, "input_layernorm.weight", {e}));
  const auto add_norm = [&](Weight LayerWeights::*target, const char* name) {
    parts.push_back(single_part(target, name, {e}));
  };
  if (config.branch_norms) {
    add_norm(&LayerWeights::attention_branch_norm, "post_attention_layernorm.weight");
    add_norm(&LayerWeights::post_attention_norm, "pre_feedforward_layernorm.weight");
    add_norm(&LayerWeights::mlp_branch_norm, "post_feedforward_layernorm.weight");
  } else {
    add_norm(&LayerWeights::post_attention_norm, "post_attention_layernorm.weight");
  }
  std::erase_if(parts, [which](const LayerPart& part) {
    return (part.place != PartPlace::kLayer) != (which == LayerParts::kExperts) ||
           (which == LayerParts::kWithoutProjections && is_projection(part.params[0].name));
  });
  return parts;
}

// The parts of a layer's experts by unit, in order.
std::vector<std::vector<LayerPart>> experts_parts(const ModelConfig& config, int64_t layer) {
  std::vector<std::vector<LayerPart>> units;
  for (LayerPart& part : parts_of(config, layer, LayerParts::kExperts)) {
    if (part.place == PartPlace::kStack || units.empty()) {
      units.emplace_back();
    }
    units.back().push_back(std::move(part));
  }
  return units;
}

}  // namespace

std::vector<ParamSpec> decoder_layer_specs(const ModelConfig& config, int64_t layer) {
  const std::string prefix = layer_prefix(config, layer);
  std::vector<ParamSpec> specs;
  for (LayerPart& part : parts_of(config, layer, LayerParts::kDense)) {
    for (ParamSpec& spec : part.params) {
      specs.push_back({prefix + spec.name, std::move(spec.shape)});
    }
  }
  return specs;
}

std::vector<std::vector<ParamSpec>> layer_experts_specs(const ModelConfig& config, int64_t layer) {
  const std::string prefix = layer_prefix(config, layer);
  std::vector<std::vector<ParamSpec>> units;
  for (const std::vector<LayerPart>& parts : experts_parts(config, layer)) {
    units.emplace_back();
    if (parts.front().place == PartPlace::kStack) {
      ParamSpec spec = parts.front().params.front();
      spec.name = prefix + spec.name;
      spec.shape.insert(spec.shape.begin(), config.experts.count);
      units.back().push_back(std::move(spec));
      continue;
    }
    for (int64_t x = 0; x < config.experts.count; ++x) {
      const std::string of_expert = prefix + "mlp.experts." + std::to_string(x) + ".";
      for (const LayerPart& part : parts) {
        for (const ParamSpec& spec : part.params) {
          units.back().push_back({of_expert + spec.name, spec.shape});
        }
      }
    }
  }
  return units;
}

UnitShapes layer_shapes(const ModelConfig& config, int64_t layer, at::ScalarType compute_dtype,
                        LayerParts which) {
  UnitShapes cut{compute_dtype, {}};
  for (LayerPart& part : parts_of(config, layer, which)) {
    cut.shapes.push_back(std::move(part.shape));
  }
  return cut;
}

std::vector<UnitShapes> experts_shapes(const ModelConfig& config, int64_t layer, int64_t count,
                                       at::ScalarType compute_dtype) {
  std::vector<UnitShapes> cuts;
  for (const std::vector<LayerPart>& parts : experts_parts(config, layer)) {
    cuts.push_back({compute_dtype, {}, count});
    for (const LayerPart& part : parts) {
      cuts.back().shapes.push_back(part.shape);
      cuts.back().shapes.back().insert(cuts.back().shapes.back().begin(), count);
    }
  }
  return cuts;
}

void set_layer_weights(LayerWeights& weights, const ModelConfig& config, int64_t layer,
                       const std::vector<Weight>& matrices, LayerParts which) {
  const std::vector<LayerPart> parts = parts_of(config, layer, which);
  TORCH_CHECK(matrices.size() == parts.size(), "a layer of ", parts.size(), " matrices, got ",
              matrices.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    weights.*parts[i].target = matrices[i];
  }
}

LayerWeights materialize_layer(const ModelConfig& config, int64_t layer, const ParamUnit& unit,
                               at::ScalarType compute_dtype, LayerParts which) {
  const UnitShapes cut = layer_shapes(config, layer, compute_dtype, which);
  LayerWeights weights;
  set_layer_weights(weights, config, layer, unit.materialize(cut), which);
  return weights;
}

at::Tensor decoder_layer(const ModelConfig& config, const LayerWeights& weights, int64_t layer,
                         const at::Tensor& hidden_sE, const LayerContext& context) {
  const NormOptions norm = config.norm_options();
  const auto branch = [&norm](const at::Tensor& mixed, const Weight& weight) {
    return weight.defined() ? rms_norm(mixed, weight, norm) : mixed;
  };
  const ResidualNorm in = residual_rms_norm(hidden_sE, weights.input_norm, norm);
  const at::Tensor mixed = mix_tokens(config, weights, layer, in.normed, context);
  const ResidualNorm attended = add_rms_norm(
      in.residual, branch(mixed, weights.attention_branch_norm), weights.post_attention_norm, norm);
  const at::Tensor of_channels = config.has_experts(layer)
                                     ? mixture(config, weights, attended.normed, context)
                                     : gated_mlp(config, weights, attended.normed, context.tiles);
  return attended.residual + branch(of_channels, weights.mlp_branch_norm);
}

}  // namespace ringside::engine
