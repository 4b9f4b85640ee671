#include "engine/architectures/architecture.h"
#include "engine/architectures/delta_net_fields.h"
#include "engine/architectures/qwen_experts.h"

namespace ringside::engine {
namespace {

// Qwen3.5's layers with Qwen3-Next's experts.
ModelConfig read_qwen3_5_moe(const JsonObject& json) {
  ModelConfig config;
  read_delta_net_fields(json, config, /*intermediate_size=*/false);
  read_gated_shared_experts(json, config);
  config.experts.normalise_weights = true;  // the class has no norm_topk_prob
  // Of the only MLP that a layer has.
  config.intermediate_size = config.experts.shared_intermediate_size;
  json.has("intermediate_size");  // known, and read by nobody: no layer has another MLP
  if (static_cast<int64_t>(expert_layers(config).size()) != config.num_hidden_layers) {
    json.refuse("mlp_only_layers", "lists layers, but every layer has experts; expected none");
  }
  read_delta_net_layers(json, config);
  return config;
}

void write_qwen3_5_moe(const ModelConfig& config, nlohmann::ordered_json& json) {
  json.erase("intermediate_size");
  write_delta_net_fields(config, json);
  write_gated_shared_experts(config, json);
}

}  // namespace

extern const Architecture kQwen35Moe{"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", read_qwen3_5_moe,
                                     write_qwen3_5_moe};

}  // namespace ringside::engine
