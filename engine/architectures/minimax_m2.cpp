#include <string>

#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

void expect_true(const JsonObject& json, const char* key) {
  if (!json.boolean(key).value_or(true)) {
    json.refuse(key, "is false, expected true");
  }
}

// rotary_dim components of each head, or partial_rotary_factor of them (transformers 5).
void read_minimax_rope(const JsonObject& json, ModelConfig& config) {
  const double turned = json.has("rotary_dim")
                            ? static_cast<double>(json.require_at_least(2, "rotary_dim")) /
                                  static_cast<double>(config.head_dim)
                            : 1.0;
  read_partial_rope(json, turned, config);
}

void read_minimax_experts(const JsonObject& json, ModelConfig& config) {
  ExpertsConfig& experts = config.experts;
  experts.router = RouterKind::kSigmoid;
  experts.block_sparse_names = true;
  experts.count = json.require_at_least(1, "num_local_experts");
  experts.per_token = json.require_at_least(1, "num_experts_per_tok");
  experts.intermediate_size = config.intermediate_size;
  experts.normalise_weights = true;
  if (experts.per_token > experts.count) {
    json.fail("num_experts_per_tok",
              "is " + std::to_string(experts.per_token) +
                  ", expected at most num_local_experts = " + std::to_string(experts.count));
  }
  expect_text(json, "scoring_func", "sigmoid");
  expect_true(json, "use_routing_bias");
  expect_integer(json, "shared_intermediate_size", 0, ": there is no shared expert here");
}

ModelConfig read_minimax_m2(const JsonObject& json) {
  ModelConfig config;
  config.rope_theta = 5e6;
  read_shared_fields(json, {.head_dim = 128, .read_rope = read_minimax_rope}, config);
  expect_true(json, "use_qk_norm");
  expect_text(json, "qk_norm_type", "per_layer");
  config.attention.joint_qk_norm = true;
  read_minimax_experts(json, config);
  for (const int64_t full : json.integers("attn_type_list")) {
    if (full != 1) {
      json.refuse("attn_type_list", "lists " + std::to_string(full) + ", expected 1 everywhere");
      break;
    }
  }
  read_further_tokens(json, {"use_mtp", "num_mtp_modules", "mtp_transformer_layers"}, config);
  config.on_disk.further.layers =
      json.boolean("use_mtp").value_or(false) ? json.integer("num_mtp_modules").value_or(0) : 0;
  return config;
}

void write_minimax_m2(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["num_local_experts"] = config.experts.count;
  json["num_experts_per_tok"] = config.experts.per_token;
  json["scoring_func"] = "sigmoid";
  json["use_routing_bias"] = true;
  json["use_qk_norm"] = true;
  json["qk_norm_type"] = "per_layer";
  json["rotary_dim"] = config.attention.rotary_dim;
  add_partial_rope(config, json);
}

}  // namespace

extern const Architecture kMiniMaxM2{"minimax_m2", "MiniMaxM2ForCausalLM", read_minimax_m2,
                                     write_minimax_m2};

}  // namespace ringside::engine
