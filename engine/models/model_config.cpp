#include "engine/models/model_config.h"

#include <algorithm>
#include <cmath>
#include <set>

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
  if (!blocks.empty()) {
    return blocks.at(layer);
  }
  return {.channel_mixer = experts.count > 0 ? ChannelMixer::kExperts : ChannelMixer::kMlp};
}

std::vector<int64_t> ModelConfig::expert_layers() const {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < num_hidden_layers; ++layer) {
    if (has_experts(layer)) {
      layers.push_back(layer);
    }
  }
  return layers;
}

void ModelConfig::list_blocks() {
  if (blocks.empty()) {
    blocks.assign(num_hidden_layers, block(0));
  }
}

std::vector<int64_t> ModelConfig::distinct_windows() const {
  std::set<int64_t> windows;
  for (int64_t layer = 0; layer < num_hidden_layers; ++layer) {
    windows.insert(window(layer));
  }
  return {windows.begin(), windows.end()};
}

double ModelConfig::softmax_scale() const {
  return 1.0 / std::sqrt(static_cast<double>(query_scalar > 0 ? query_scalar : head_dim));
}

int64_t num_positions(const ModelConfig& config) {
  int64_t positions = config.max_position_embeddings;
  if (const auto* linear = std::get_if<LinearRope>(&config.rope_scaling)) {
    positions = times(positions, linear->factor);
  } else if (const auto* yarn = std::get_if<YarnRope>(&config.rope_scaling)) {
    positions = std::max(positions, times(yarn->original_max_position_embeddings, yarn->factor));
  }
  return at_most(positions, config.max_document_tokens);
}

int64_t longest_exact_document(const ModelConfig& config) {
  if (std::holds_alternative<DynamicRope>(config.rope_scaling)) {
    return at_most(config.max_position_embeddings, config.max_document_tokens);
  }
  return config.max_document_tokens;
}

}  // namespace ringside::engine
