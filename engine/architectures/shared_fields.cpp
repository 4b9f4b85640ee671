#include "engine/architectures/shared_fields.h"

#include <string>

#include "engine/architectures/quantisation_fields.h"

namespace ringside::engine {
namespace {

constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";

void refuse_unsupported(const JsonObject& json, const FieldDefaults& defaults) {
  const std::string expected = defaults.activation_value;
  const std::string act = json.text(defaults.activation).value_or(expected);
  if (act != expected) {
    json.refuse(defaults.activation, "is '" + act + "', expected " + expected);
  }
  refuse_unread_quantisation(json, defaults.mxfp4);
}

// A required size, unless the config has one.
void read_size(const JsonObject& json, const char* key, int64_t& size) {
  if (size == 0 || json.has(key)) {
    size = json.require_at_least(1, key);
  }
}

// Qwen2.5-1M: beyond the length it was first trained on, vLLM attends in chunks. transformers and
// this program attend to all tokens.
void read_dual_chunks(const JsonObject& json, ModelConfig& config) {
  constexpr const char* kKey = "dual_chunk_attention_config";
  const auto chunks = json.object(kKey);
  if (chunks && !chunks->json().empty()) {
    config.attention.plain_tokens = chunks->require_at_least(1, "original_max_position_embeddings");
    json.pass_over(kKey);
  }
}

void read_heads(const JsonObject& json, const FieldDefaults& defaults, ModelConfig& c) {
  read_size(json, "num_attention_heads", c.num_attention_heads);
  if (!defaults.key_value_heads_required && !json.has("num_key_value_heads")) {
    c.num_key_value_heads = c.num_attention_heads;
  } else {
    read_size(json, "num_key_value_heads", c.num_key_value_heads);
  }
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    json.fail("num_attention_heads", "is " + std::to_string(c.num_attention_heads) +
                                         ", expected a multiple of num_key_value_heads = " +
                                         std::to_string(c.num_key_value_heads));
  }
  if (json.has("head_dim")) {
    c.head_dim = json.require_at_least(1, "head_dim");
  } else if (defaults.head_dim > 0) {
    c.head_dim = defaults.head_dim;
  } else if (c.hidden_size % c.num_attention_heads == 0) {
    c.head_dim = c.hidden_size / c.num_attention_heads;
  } else {
    json.fail("head_dim", "is missing, and hidden_size = " + std::to_string(c.hidden_size) +
                              " is no multiple of num_attention_heads = " +
                              std::to_string(c.num_attention_heads));
  }
  if (c.head_dim % 2 != 0) {
    json.fail("head_dim", "is " + std::to_string(c.head_dim) +
                              ", expected an even number: RoPE turns pairs of components");
  }
}

// layer_types; none, or one a layer.
std::vector<std::string> read_layer_types(const JsonObject& json, const ModelConfig& config) {
  std::vector<std::string> types = json.texts("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != config.num_hidden_layers) {
    json.fail("layer_types", "has " + std::to_string(types.size()) +
                                 " layers, expected num_hidden_layers = " +
                                 std::to_string(config.num_hidden_layers));
  }
  return types;
}

}  // namespace

void read_shared_fields(const JsonObject& json, const FieldDefaults& defaults, ModelConfig& c) {
  refuse_unsupported(json, defaults);
  read_size(json, "vocab_size", c.vocab_size);
  read_size(json, "hidden_size", c.hidden_size);
  if (defaults.intermediate_size) {
    read_size(json, "intermediate_size", c.intermediate_size);
  }
  read_size(json, "num_hidden_layers", c.num_hidden_layers);
  read_size(json, "max_position_embeddings", c.max_position_embeddings);
  read_dual_chunks(json, c);
  read_heads(json, defaults, c);
  c.rms_norm_eps = json.number("rms_norm_eps").value_or(c.rms_norm_eps);
  if (!(c.rms_norm_eps > 0)) {
    json.fail("rms_norm_eps", "is " + std::to_string(c.rms_norm_eps) + ", expected more than 0");
  }
  defaults.read_rope(json, c);
  c.tie_word_embeddings = json.boolean("tie_word_embeddings").value_or(defaults.tied);
}

void refuse_unread_quantisation(const JsonObject& json, bool mxfp4) {
  const auto quantised = json.object("quantization_config");
  if (!quantised) {
    return;
  }
  const std::string problem = quantisation_problem(*quantised, mxfp4);
  if (!problem.empty()) {
    json.refuse("quantization_config", problem);
  }
}

void expect_integer(const JsonObject& json, const char* key, int64_t expected,
                    const std::string& why) {
  if (const int64_t value = json.integer(key).value_or(expected); value != expected) {
    json.refuse(key,
                "is " + std::to_string(value) + ", expected " + std::to_string(expected) + why);
  }
}

void expect_text(const JsonObject& json, const char* key, const std::string& expected) {
  if (const std::string value = json.text(key).value_or(expected); value != expected) {
    json.refuse(key, "is '" + value + "', expected " + expected);
  }
}

int64_t read_expert_count(const JsonObject& json) {
  const char* hub = "num_experts";
  const char* local = "num_local_experts";
  if (!json.has(hub)) {
    return json.require_at_least(1, local);
  }
  const int64_t count = json.require_at_least(1, hub);
  if (const auto other = json.integer(local); other && *other != count) {
    json.fail(local,
              "is " + std::to_string(*other) + ", but num_experts is " + std::to_string(count));
  }
  return count;
}

void read_attention_bias(const JsonObject& json, ModelConfig& config) {
  config.attention.qkv_bias = config.attention.o_bias =
      json.boolean("attention_bias").value_or(false);
}

void read_further_tokens(const JsonObject& json, std::initializer_list<const char*> keys,
                         ModelConfig& config) {
  for (const char* key : keys) {
    if (json.has(key)) {
      config.on_disk.further.fields.emplace_back(key, json.json().at(key).dump());
    }
  }
}

void pass_over_qk_norm(const JsonObject& json) {
  if (json.boolean("use_qk_norm")) {
    json.pass_over("use_qk_norm");
  }
}

void read_layer_windows(const JsonObject& json, int64_t window,
                        const std::function<bool(int64_t layer)>& is_sliding, ModelConfig& config) {
  const std::vector<std::string> types = read_layer_types(json, config);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string type = !types.empty()                    ? types[layer]
                             : window > 0 && is_sliding(layer) ? kSliding
                                                               : kFull;
    if (type != kSliding && type != kFull) {
      json.fail("layer_types",
                "holds '" + type + "', expected sliding_attention or full_attention");
    }
    if (type == kSliding) {
      if (window == 0) {
        json.fail("layer_types", "holds sliding_attention, but the model has no sliding window");
      }
      list_blocks(config);
      config.blocks[layer].window = window;
    }
  }
}

void check_layer_types(const JsonObject& json, const ModelConfig& config) {
  const std::vector<std::string> types = read_layer_types(json, config);
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    const char* expected = config.window(static_cast<int64_t>(layer)) > 0 ? kSliding : kFull;
    if (types[layer] != expected) {
      json.fail("layer_types", "holds '" + types[layer] + "' for layer " + std::to_string(layer) +
                                   ", expected " + expected + ", as the other fields say");
    }
  }
}

int64_t read_window(const JsonObject& json, int64_t missing) {
  if (!json.json().contains("sliding_window")) {
    return missing;
  }
  return json.has("sliding_window") ? json.require_at_least(1, "sliding_window") : 0;
}

void read_qwen_windows(const JsonObject& json, ModelConfig& config) {
  const bool used = json.boolean("use_sliding_window").value_or(false);
  // Without use_sliding_window these two say nothing.
  const int64_t first = json.integer("max_window_layers").value_or(28);
  json.has("sliding_window");
  const int64_t window = used ? read_window(json) : 0;
  read_layer_windows(
      json, window, [&](int64_t layer) { return layer >= first; }, config);
}

nlohmann::ordered_json layer_types_json(const ModelConfig& config) {
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    types.push_back(config.window(layer) > 0 ? kSliding : kFull);
  }
  return types;
}

nlohmann::ordered_json window_json(const ModelConfig& config) {
  const int64_t window = distinct_windows(config).back();
  return window > 0 ? nlohmann::ordered_json(window) : nlohmann::ordered_json(nullptr);
}

void write_qwen_windows(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["sliding_window"] = window_json(config);
  json["use_sliding_window"] = !json["sliding_window"].is_null();
  if (json["use_sliding_window"]) {
    int64_t first = 0;
    while (config.window(first) == 0) {
      ++first;
    }
    json["max_window_layers"] = first;
    json["layer_types"] = layer_types_json(config);
  }
}

void write_shared_fields(const ModelConfig& config, nlohmann::ordered_json& json) {
  json.update({{"vocab_size", config.vocab_size},
               {"hidden_size", config.hidden_size},
               {"intermediate_size", config.intermediate_size},
               {"num_hidden_layers", config.num_hidden_layers},
               {"num_attention_heads", config.num_attention_heads},
               {"num_key_value_heads", config.num_key_value_heads},
               {"head_dim", config.head_dim},
               {"hidden_act", "silu"},
               {"max_position_embeddings", config.max_position_embeddings},
               {"rms_norm_eps", config.rms_norm_eps},
               {"tie_word_embeddings", config.tie_word_embeddings}});
  add_rope(config, json);
}

}  // namespace ringside::engine
