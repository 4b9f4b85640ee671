#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

// Every layer has the window, if there is one.
ModelConfig read_mistral(const JsonObject& json) {
  ModelConfig config;
  read_shared_fields(json, {.key_value_heads_required = false}, config);
  list_blocks(config);
  for (BlockSpec& block : config.blocks) {
    block.window = read_window(json);
  }
  return config;
}

void write_mistral(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["sliding_window"] = window_json(config);
}

}  // namespace

extern const Architecture kMistral{"mistral", "MistralForCausalLM", read_mistral, write_mistral};

}  // namespace ringside::engine
