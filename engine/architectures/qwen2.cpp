#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

ModelConfig read_qwen2(const JsonObject& json) {
  ModelConfig config;
  read_shared_fields(json, {}, config);
  refuse_windows(json);
  if (json.boolean("use_mrope").value_or(false)) {
    json.fail("use_mrope", "is true, but positions have one component here");
  }
  // Always; the class has no attention_bias.
  config.qkv_bias = true;
  return config;
}

void write_qwen2(const ModelConfig&, nlohmann::ordered_json& json) {
  json["use_sliding_window"] = false;
  json["sliding_window"] = nullptr;
}

}  // namespace

const Architecture kQwen2{"qwen2", "Qwen2ForCausalLM", read_qwen2, write_qwen2};

}  // namespace ringside::engine
