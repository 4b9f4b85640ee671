#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

ModelConfig read_qwen3(const JsonObject& json) {
  ModelConfig config;
  read_shared_fields(json, {.head_dim = 128}, config);
  read_qwen_windows(json, config);
  read_attention_bias(json, config);
  config.attention.qk_norm = true;
  pass_over_qk_norm(json);
  return config;
}

void write_qwen3(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.attention.qkv_bias;
  write_qwen_windows(config, json);
}

}  // namespace

extern const Architecture kQwen3{"qwen3", "Qwen3ForCausalLM", read_qwen3, write_qwen3};

}  // namespace ringside::engine
