#include <variant>

#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

// Norms of what each mixer adds, and of all query heads and all key heads together.
ModelConfig read_olmo2(const JsonObject& json) {
  ModelConfig config;
  config.rms_norm_eps = 1e-5;
  config.max_position_embeddings = 2048;
  read_shared_fields(json, {.key_value_heads_required = false}, config);
  read_attention_bias(json, config);
  config.attention.joint_qk_norm = true;
  config.norm_place = NormPlace::kAfter;
  return config;
}

void write_olmo2(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.attention.qkv_bias;
}

// OLMo 2 with windows in three of four layers, whose RoPE is not scaled. That is what the models
// were trained with and what vLLM and llama.cpp compute. transformers 5.9 scales it in all layers,
// which is a fault: https://github.com/huggingface/transformers/pull/45945
ModelConfig read_olmo3(const JsonObject& json) {
  ModelConfig config = read_olmo2(json);
  read_layer_windows(
      json, read_window(json), [](int64_t layer) { return (layer + 1) % 4 != 0; }, config);
  list_blocks(config);
  const bool is_scaled = !std::holds_alternative<std::monostate>(config.rope_scaling);
  config.local_rope_theta = is_scaled ? config.rope_theta : config.local_rope_theta;
  for (BlockSpec& block : config.blocks) {
    block.local_rope = is_scaled && block.window > 0;
  }
  return config;
}

void write_olmo3(const ModelConfig& config, nlohmann::ordered_json& json) {
  write_olmo2(config, json);
  json["sliding_window"] = window_json(config);
  json["layer_types"] = layer_types_json(config);
}

}  // namespace

extern const Architecture kOlmo2{"olmo2", "Olmo2ForCausalLM", read_olmo2, write_olmo2};
extern const Architecture kOlmo3{"olmo3", "Olmo3ForCausalLM", read_olmo3, write_olmo3};

}  // namespace ringside::engine
