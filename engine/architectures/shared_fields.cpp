#include "engine/architectures/shared_fields.h"

#include <string>

#include "engine/architectures/rope_json.h"

namespace ringside::engine {
namespace {

void refuse_unsupported(const JsonObject& json, const char* activation) {
  const std::string act = json.text(activation).value_or("silu");
  if (act != "silu") {
    json.fail(activation, "is '" + act + "', expected silu");
  }
  if (const auto quantised = json.object("quantization_config")) {
    const std::string method = quantised->text("quant_method").value_or("");
    const std::string type = quantised->text("bnb_4bit_quant_type").value_or("");
    if (method != "bitsandbytes" || type != "nf4") {
      json.fail("quantization_config",
                "is " + quantised->json().dump() + ", expected none, or bitsandbytes' nf4");
    }
  }
}

void read_heads(const JsonObject& json, const FieldDefaults& defaults, ModelConfig& c) {
  c.num_attention_heads = json.require_at_least(1, "num_attention_heads");
  c.num_key_value_heads = !defaults.key_value_heads_required && !json.has("num_key_value_heads")
                              ? c.num_attention_heads
                              : json.require_at_least(1, "num_key_value_heads");
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

}  // namespace

void read_shared_fields(const JsonObject& json, const FieldDefaults& defaults, ModelConfig& c) {
  refuse_unsupported(json, defaults.activation);
  c.vocab_size = json.require_at_least(1, "vocab_size");
  c.hidden_size = json.require_at_least(1, "hidden_size");
  c.intermediate_size = json.require_at_least(1, "intermediate_size");
  c.num_hidden_layers = json.require_at_least(1, "num_hidden_layers");
  c.max_position_embeddings = json.require_at_least(1, "max_position_embeddings");
  read_heads(json, defaults, c);
  c.rms_norm_eps = json.number("rms_norm_eps").value_or(c.rms_norm_eps);
  if (!(c.rms_norm_eps > 0)) {
    json.fail("rms_norm_eps", "is " + std::to_string(c.rms_norm_eps) + ", expected more than 0");
  }
  read_rope(json, c);
  c.tie_word_embeddings = json.boolean("tie_word_embeddings").value_or(false);
}

void read_attention_bias(const JsonObject& json, ModelConfig& config) {
  config.qkv_bias = config.o_bias = json.boolean("attention_bias").value_or(false);
}

void refuse_windows(const JsonObject& json) {
  if (json.boolean("use_sliding_window").value_or(false)) {
    json.fail("use_sliding_window", "is true, but every layer attends to its whole document here");
  }
  for (const std::string& type : json.texts("layer_types")) {
    if (type != "full_attention") {
      json.fail("layer_types", "holds '" + type + "', expected full_attention only");
    }
  }
  // Without use_sliding_window these say nothing.
  json.has("sliding_window");
  json.has("max_window_layers");
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
