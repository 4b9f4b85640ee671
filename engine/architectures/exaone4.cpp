#include <cstdint>

#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

// Every so many layers one attends to all tokens. layer_types counts before it: only files with
// layer_types have a pattern in letters ("LLLG") or none.
int64_t read_pattern(const JsonObject& json, int64_t window) {
  const char* key = "sliding_window_pattern";
  if (json.has("layer_types") || window == 0) {
    json.has(key);
    return 1;
  }
  if (json.has(key) && json.json()[key].is_string()) {
    json.fail(key,
              "is " + json.json()[key].dump() + ", expected a number where layer_types is missing");
  }
  return json.has(key) ? json.require_at_least(1, key) : 4;
}

ModelConfig read_exaone4(const JsonObject& json) {
  ModelConfig config;
  config.rms_norm_eps = 1e-5;
  read_shared_fields(json, {}, config);
  config.attention.qk_norm = true;
  config.norm_place = NormPlace::kAfter;
  const int64_t window = read_window(json), pattern = read_pattern(json, window);
  read_layer_windows(
      json, window, [&](int64_t layer) { return (layer + 1) % pattern != 0; }, config);
  list_blocks(config);
  for (BlockSpec& block : config.blocks) {
    block.no_rope = window > 0 && block.window == 0;  // of models with windows
  }
  return config;
}

void write_exaone4(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["sliding_window"] = window_json(config);
  if (json["sliding_window"].is_null() && config.block(0).no_rope) {
    json["sliding_window"] = 4096;  // of no layer; without one all layers would have RoPE
  }
  json["layer_types"] = layer_types_json(config);
}

}  // namespace

extern const Architecture kExaone4{"exaone4", "Exaone4ForCausalLM", read_exaone4, write_exaone4};

}  // namespace ringside::engine
