#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

ModelConfig read_seed_oss(const JsonObject& json) {
  ModelConfig config;
  // null means hidden_size / num_attention_heads; no head_dim at all means 128.
  read_shared_fields(json, {.head_dim = json.json().contains("head_dim") ? 0 : 128}, config);
  config.attention.qkv_bias = json.boolean("attention_bias").value_or(true);
  config.attention.o_bias = json.boolean("attention_out_bias").value_or(false);
  config.mlp_bias = json.boolean("mlp_bias").value_or(false);
  json.has("residual_dropout");
  return config;
}

void write_seed_oss(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.attention.qkv_bias;
  json["attention_out_bias"] = config.attention.o_bias;
  json["mlp_bias"] = config.mlp_bias;
}

}  // namespace

extern const Architecture kSeedOss{"seed_oss", "SeedOssForCausalLM", read_seed_oss, write_seed_oss};

}  // namespace ringside::engine
