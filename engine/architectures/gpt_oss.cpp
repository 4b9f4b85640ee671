#include <algorithm>
#include <string>

#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

// Source: transformers 5.23, GptOssExperts, which has both as constants and does not read
// swiglu_limit.
constexpr double kGateLimit = 7.0;
constexpr double kGateAlpha = 1.702;

// A key of other programs' that says again what `value` is.
void refuse_other(const JsonObject& json, const char* key, double value) {
  if (json.number(key).value_or(value) != value) {
    json.refuse(key,
                "is " + json.json().at(key).dump() + ", expected " + nlohmann::json(value).dump());
  }
}

void read_experts(const JsonObject& json, ModelConfig& config) {
  ExpertsConfig& experts = config.experts;
  experts.kind = ExpertKind::kClamped;
  experts.count = read_expert_count(json);
  experts.per_token = json.require_at_least(1, "num_experts_per_tok");
  if (experts.per_token > experts.count) {
    json.fail("num_experts_per_tok", "is " + std::to_string(experts.per_token) +
                                         ", expected at most " + std::to_string(experts.count) +
                                         ", the number of experts");
  }
  experts.intermediate_size = config.intermediate_size;
  refuse_other(json, "experts_per_token", static_cast<double>(experts.per_token));
  experts.gate_limit = kGateLimit;
  experts.gate_alpha = kGateAlpha;
  refuse_other(json, "swiglu_limit", kGateLimit);
  // Of a loss that pre-training adds.
  json.has("router_aux_loss_coef");
  json.has("output_router_logits");
}

ModelConfig read_gpt_oss(const JsonObject& json) {
  ModelConfig config;
  config.rope_theta = 150000.0;
  config.rms_norm_eps = 1e-5;
  read_shared_fields(json, {.head_dim = 64, .mxfp4 = true}, config);
  if (!json.has("rope_parameters") && !json.has("rope_scaling")) {
    json.fail("rope_parameters", "is missing, and so is rope_scaling");
  }
  json.has("initial_context_length");  // that of the rope_type
  config.attention.qkv_bias = config.attention.o_bias =
      json.boolean("attention_bias").value_or(true);
  config.attention.sinks = true;
  read_experts(json, config);
  read_layer_windows(
      json, read_window(json, 128), [](int64_t layer) { return layer % 2 == 0; }, config);
  return config;
}

void write_gpt_oss(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.attention.qkv_bias;
  json["num_local_experts"] = config.experts.count;
  json["num_experts_per_tok"] = config.experts.per_token;
  json["swiglu_limit"] = config.experts.gate_limit;
  json["sliding_window"] = window_json(config);
  json["layer_types"] = layer_types_json(config);
  json["output_router_logits"] = false;
}

}  // namespace

extern const Architecture kGptOss{"gpt_oss", "GptOssForCausalLM", read_gpt_oss, write_gpt_oss};

}  // namespace ringside::engine
