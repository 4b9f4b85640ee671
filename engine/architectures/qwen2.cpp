#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

ModelConfig read_qwen2(const JsonObject& json) {
  ModelConfig config;
  read_shared_fields(json, {}, config);
  read_qwen_windows(json, config);
  if (json.boolean("use_mrope").value_or(false)) {
    json.refuse("use_mrope", "is true, but positions have one component here");
  }
  // Always; the class has no attention_bias.
  config.attention.qkv_bias = true;
  return config;
}

void write_qwen2(const ModelConfig& config, nlohmann::ordered_json& json) {
  write_qwen_windows(config, json);
}

}  // namespace

extern const Architecture kQwen2{"qwen2", "Qwen2ForCausalLM", read_qwen2, write_qwen2};

}  // namespace ringside::engine
