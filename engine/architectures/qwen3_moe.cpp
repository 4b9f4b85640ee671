#include "engine/architectures/architecture.h"
#include "engine/architectures/qwen_experts.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

ModelConfig read_qwen3_moe(const JsonObject& json) {
  ModelConfig config;
  read_shared_fields(json, {}, config);
  read_attention_bias(json, config);
  config.attention.qk_norm = true;
  pass_over_qk_norm(json);
  read_qwen_experts(json, /*normalised=*/false, config);
  // Of every layer: the class has no max_window_layers.
  if (json.boolean("use_sliding_window").value_or(false)) {
    for (BlockSpec& block : config.blocks) {
      block.window = read_window(json);
    }
  }
  json.has("sliding_window");
  json.has("max_window_layers");
  check_layer_types(json, config);
  return config;
}

void write_qwen3_moe(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.attention.qkv_bias;
  json["sliding_window"] = window_json(config);
  json["use_sliding_window"] = !json["sliding_window"].is_null();
  write_qwen_experts(config, json);
}

}  // namespace

extern const Architecture kQwen3Moe{"qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3_moe,
                                    write_qwen3_moe};

}  // namespace ringside::engine
