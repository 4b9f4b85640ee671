#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

void read_phi3_rope(const JsonObject& json, ModelConfig& config) {
  read_partial_rope(json, 1.0, config);
  if (config.attention.rotary_dim == config.head_dim) {
    config.attention.rotary_dim = 0;
  }
}

// Llama with one tensor for q, k and v, and one for gate and up.
ModelConfig read_phi3(const JsonObject& json) {
  ModelConfig config;
  config.rms_norm_eps = 1e-5;
  config.max_position_embeddings = 4096;
  read_shared_fields(json, {.key_value_heads_required = false, .read_rope = read_phi3_rope},
                     config);
  config.fused_projections = true;
  list_blocks(config);
  for (BlockSpec& block : config.blocks) {
    block.window = read_window(json, 0);
  }
  return config;
}

void write_phi3(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["sliding_window"] = window_json(config);
  json["original_max_position_embeddings"] = config.max_position_embeddings;
  if (const auto* longrope = std::get_if<LongRope>(&config.rope_scaling)) {
    json["original_max_position_embeddings"] = longrope->original_max_position_embeddings;
  }
  if (config.attention.rotary_dim > 0) {
    add_partial_rope(config, json);
  }
}

}  // namespace

extern const Architecture kPhi3{"phi3", "Phi3ForCausalLM", read_phi3, write_phi3};

}  // namespace ringside::engine
