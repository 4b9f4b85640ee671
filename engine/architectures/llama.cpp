#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

ModelConfig read_llama(const JsonObject& json) {
  ModelConfig config;
  read_shared_fields(json, {.key_value_heads_required = false}, config);
  read_attention_bias(json, config);
  config.mlp_bias = json.boolean("mlp_bias").value_or(false);
  return config;
}

void write_llama(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.attention.qkv_bias;
  json["mlp_bias"] = config.mlp_bias;
}

}  // namespace

extern const Architecture kLlama{"llama", "LlamaForCausalLM", read_llama, write_llama};

}  // namespace ringside::engine
