#include "engine/layers/model_config.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

namespace ringside::engine {
namespace {

int64_t at_most(int64_t length, int64_t limit) {
  return limit > 0 ? std::min(length, limit) : length;
}

int64_t times(int64_t length, double factor) {
  return static_cast<int64_t>(static_cast<double>(length) * factor);
}

}  // namespace

BlockSpec ModelConfig::block(int64_t layer) const {
  if (layer == further_layer(*this) && on_disk.predicts_further) {
    return {
        .token_mixer = has_latent_attention() ? TokenMixerKind::kLatentAttention
                                              : TokenMixerKind::kSoftmaxAttention,
        .channel_mixer = experts.count > 0 ? ChannelMixerKind::kExperts : ChannelMixerKind::kMlp};
  }
  if (!blocks.empty()) {
    return blocks.at(layer);
  }
  return {.channel_mixer = experts.count > 0 ? ChannelMixerKind::kExperts : ChannelMixerKind::kMlp};
}

std::string experts_module(const ExpertsConfig& experts) {
  return experts.block_sparse_names ? "block_sparse_moe" : "mlp";
}

std::vector<int64_t> expert_layers(const ModelConfig& config) {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.has_experts(layer)) {
      layers.push_back(layer);
    }
  }
  return layers;
}

bool is_delta_net(const ModelConfig& config, int64_t layer) {
  return config.block(layer).token_mixer == TokenMixerKind::kGatedDelta;
}

std::string trunk_prefix(const ModelConfig& config) { return config.on_disk.trunk; }

std::string layer_prefix(const ModelConfig& config, int64_t layer) {
  if (const std::string& part = config.on_disk.further.part;
      layer >= further_layer(config) && !part.empty()) {
    return part + "layers." + std::to_string(layer - further_layer(config)) + ".";
  }
  return trunk_prefix(config) + "layers." + std::to_string(layer) + ".";
}

// Names: DeepSeek-V3's published files, and those of Qwen3-Next; vLLM's deepseek_mtp.py and
// qwen3_next_mtp.py read the same.
FurtherNames further_names(const ModelConfig& config) {
  if (const std::string& part = config.on_disk.further.part; !part.empty()) {
    return {part + "pre_fc_norm_embedding.weight", part + "pre_fc_norm_hidden.weight",
            part + "fc.weight", part + "norm.weight"};
  }
  const std::string layer = layer_prefix(config, further_layer(config));
  return {layer + "enorm.weight", layer + "hnorm.weight", layer + "eh_proj.weight",
          layer + "shared_head.norm.weight"};
}

std::string further_problem(const ModelConfig& config) {
  const int64_t layers = config.on_disk.further.layers;
  if (layers != 1) {
    return "the model has " + std::to_string(layers) +
           " layers that predict further tokens, expected 1";
  }
  if (config.model_type == "minimax_m2") {
    return "those of MiniMax-M2 are not known here; expected deepseek_v3, kimi_k2, glm4_moe, "
           "qwen3_next or qwen3_5";
  }
  if (config.vision) {
    return "the model takes images";
  }
  return "";
}

void list_blocks(ModelConfig& config) {
  if (config.blocks.empty()) {
    config.blocks.assign(config.num_hidden_layers, config.block(0));
  }
}

std::vector<int64_t> distinct_windows(const ModelConfig& config) {
  std::set<int64_t> windows;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    windows.insert(config.window(layer));
  }
  return {windows.begin(), windows.end()};
}

double ModelConfig::softmax_scale() const {
  if (multipliers.scores > 0) {
    return multipliers.scores;
  }
  const int64_t scalar = attention.query_scalar > 0 ? attention.query_scalar : head_dim;
  return 1.0 / std::sqrt(static_cast<double>(scalar));
}

int64_t num_positions(const ModelConfig& config) {
  int64_t positions = config.max_position_embeddings;
  if (const auto* linear = std::get_if<LinearRope>(&config.rope_scaling)) {
    positions = times(positions, linear->factor);
  } else if (const auto* yarn = std::get_if<YarnRope>(&config.rope_scaling)) {
    positions = std::max(positions, times(yarn->original_max_position_embeddings, yarn->factor));
  }
  return at_most(at_most(positions, config.max_document_tokens), config.attention.plain_tokens);
}

int64_t longest_exact_document(const ModelConfig& config) {
  const bool dynamic = std::holds_alternative<DynamicRope>(config.rope_scaling);
  int64_t longest = 0;
  for (const int64_t limit : {config.max_document_tokens, config.attention.plain_tokens,
                              dynamic ? config.max_position_embeddings : 0}) {
    longest = longest > 0 ? at_most(longest, limit) : limit;
  }
  return longest;
}

}  // namespace ringside::engine
