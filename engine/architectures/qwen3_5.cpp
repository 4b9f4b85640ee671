#include "engine/architectures/architecture.h"
#include "engine/architectures/delta_net_fields.h"

namespace ringside::engine {
namespace {

ModelConfig read_qwen3_5(const JsonObject& json) {
  ModelConfig config;
  read_delta_net_fields(json, config);
  read_delta_net_layers(json, config);
  if (!json.integers("mlp_only_layers").empty()) {
    json.refuse("mlp_only_layers", "lists layers, but the model has no experts; expected none");
  }
  return config;
}

void write_qwen3_5(const ModelConfig& config, nlohmann::ordered_json& json) {
  write_delta_net_fields(config, json);
}

}  // namespace

extern const Architecture kQwen35{"qwen3_5_text", "Qwen3_5ForCausalLM", read_qwen3_5,
                                  write_qwen3_5};

}  // namespace ringside::engine
