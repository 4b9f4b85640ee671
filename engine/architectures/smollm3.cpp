#include <cstdint>
#include <string>
#include <vector>

#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

// For each layer 0 if it has no RoPE: no_rope_layers, or where that is missing, every fourth layer
// or another interval.
std::vector<int64_t> read_rope_layers(const JsonObject& json, int64_t layers) {
  const int64_t interval =
      json.has("no_rope_layer_interval") ? json.require_at_least(1, "no_rope_layer_interval") : 4;
  std::vector<int64_t> with_rope = json.integers("no_rope_layers");
  if (with_rope.empty()) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      with_rope.push_back((layer + 1) % interval != 0 ? 1 : 0);
    }
  }
  if (static_cast<int64_t>(with_rope.size()) < layers) {
    json.fail("no_rope_layers",
              "has " + std::to_string(with_rope.size()) +
                  " layers, expected num_hidden_layers = " + std::to_string(layers));
  }
  return with_rope;
}

ModelConfig read_smollm3(const JsonObject& json) {
  ModelConfig config;
  config.rope_theta = 2e6;
  read_shared_fields(json, {.tied = true}, config);
  read_attention_bias(json, config);
  config.mlp_bias = json.boolean("mlp_bias").value_or(false);
  const std::vector<int64_t> with_rope = read_rope_layers(json, config.num_hidden_layers);
  json.has("sliding_window");     // of no effect without use_sliding_window
  json.has("max_window_layers");  // of no effect in this class
  const bool used = json.boolean("use_sliding_window").value_or(false);
  read_layer_windows(
      json, used ? read_window(json, 0) : 0, [&](int64_t layer) { return with_rope[layer] == 0; },
      config);
  list_blocks(config);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    config.blocks[layer].no_rope = with_rope[layer] == 0;
  }
  return config;
}

void write_smollm3(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.attention.qkv_bias;
  json["mlp_bias"] = config.mlp_bias;
  json["sliding_window"] = window_json(config);
  json["use_sliding_window"] = !json["sliding_window"].is_null();
  json["layer_types"] = layer_types_json(config);
  nlohmann::ordered_json with_rope = nlohmann::ordered_json::array();
  for (const BlockSpec& block : config.blocks) {
    with_rope.push_back(block.no_rope ? 0 : 1);
  }
  json["no_rope_layers"] = with_rope;
}

}  // namespace

extern const Architecture kSmolLm3{"smollm3", "SmolLM3ForCausalLM", read_smollm3, write_smollm3};

}  // namespace ringside::engine
