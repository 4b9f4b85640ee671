#include "engine/architectures/architecture.h"
#include "engine/architectures/delta_net_fields.h"
#include "engine/architectures/qwen_experts.h"

namespace ringside::engine {
namespace {

ModelConfig read_qwen3_next(const JsonObject& json) {
  ModelConfig config;
  read_delta_net_fields(json, config);
  config.delta_net.grouped_projections = true;
  read_gated_shared_experts(json, config);
  read_delta_net_layers(json, config);
  return config;
}

void write_qwen3_next(const ModelConfig& config, nlohmann::ordered_json& json) {
  write_delta_net_fields(config, json);
  write_gated_shared_experts(config, json);
}

}  // namespace

extern const Architecture kQwen3Next{"qwen3_next", "Qwen3NextForCausalLM", read_qwen3_next,
                                     write_qwen3_next};

}  // namespace ringside::engine
