#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

ModelConfig read_mistral(const JsonObject& json) {
  ModelConfig config;
  read_shared_fields(json, {.key_value_heads_required = false}, config);
  if (json.has("sliding_window")) {
    json.fail("sliding_window", "is set, but every layer attends to its whole document here");
  }
  return config;
}

void write_mistral(const ModelConfig&, nlohmann::ordered_json& json) {
  json["sliding_window"] = nullptr;
}

}  // namespace

const Architecture kMistral{"mistral", "MistralForCausalLM", read_mistral, write_mistral};

}  // namespace ringside::engine
