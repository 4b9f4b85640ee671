#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"
#include "engine/architectures/sigmoid_experts.h"

namespace ringside::engine {
namespace {

void read_half_rope(const JsonObject& json, ModelConfig& config) {
  read_partial_rope(json, 0.5, config);
}

ModelConfig read_glm4_moe(const JsonObject& json) {
  ModelConfig config;
  config.rms_norm_eps = 1e-5;
  read_shared_fields(json, {.read_rope = read_half_rope}, config);
  config.attention.qkv_bias = json.boolean("attention_bias").value_or(false);  // not of o_proj
  config.attention.qk_norm = json.boolean("use_qk_norm").value_or(false);
  read_sigmoid_experts(json, config);
  return config;
}

void write_glm4_moe(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.attention.qkv_bias;
  json["use_qk_norm"] = config.attention.qk_norm;
  add_partial_rope(config, json);
  write_sigmoid_experts(config, json);
}

}  // namespace

extern const Architecture kGlm4Moe{"glm4_moe", "Glm4MoeForCausalLM", read_glm4_moe, write_glm4_moe};

}  // namespace ringside::engine
