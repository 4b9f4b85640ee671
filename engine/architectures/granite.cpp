#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

double read_factor(const JsonObject& json, const char* key) {
  const double factor = json.number(key).value_or(1.0);
  if (!(factor > 0)) {
    json.fail(key, "is " + json.json().at(key).dump() + ", expected more than 0");
  }
  return factor;
}

// Llama with factors on embeddings, scores, what mixers add to the residual stream, and logits.
ModelConfig read_granite(const JsonObject& json) {
  ModelConfig config;
  read_shared_fields(json, {.key_value_heads_required = false}, config);
  read_attention_bias(json, config);
  config.mlp_bias = json.boolean("mlp_bias").value_or(false);
  config.multipliers.embedding = read_factor(json, "embedding_multiplier");
  config.multipliers.scores = read_factor(json, "attention_multiplier");
  config.multipliers.residual = read_factor(json, "residual_multiplier");
  config.multipliers.logits_divisor = read_factor(json, "logits_scaling");
  return config;
}

void write_granite(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.attention.qkv_bias;
  json["mlp_bias"] = config.mlp_bias;
  json["embedding_multiplier"] = config.multipliers.embedding;
  json["attention_multiplier"] = config.multipliers.scores;
  json["residual_multiplier"] = config.multipliers.residual;
  json["logits_scaling"] = config.multipliers.logits_divisor;
}

}  // namespace

extern const Architecture kGranite{"granite", "GraniteForCausalLM", read_granite, write_granite};

}  // namespace ringside::engine
