#include "engine/architectures/architecture.h"
#include "engine/architectures/shared_fields.h"

namespace ringside::engine {
namespace {

void refuse_unless_null(const JsonObject& json, const char* key) {
  if (json.has(key)) {
    json.refuse(key, "is set, expected null: the attention and loss kernels have no soft cap");
  }
}

ModelConfig read_gemma3(const JsonObject& json) {
  ModelConfig config;
  config.rope_theta = 1e6;
  // Files of the larger models leave out what has the class's defaults.
  config.vocab_size = 262208;
  config.hidden_size = 2304;
  config.intermediate_size = 9216;
  config.num_hidden_layers = 26;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.max_position_embeddings = 131072;
  read_shared_fields(json,
                     {.head_dim = 256,
                      .activation = "hidden_activation",
                      .activation_value = "gelu_pytorch_tanh",
                      .tied = true,
                      .read_rope = read_global_and_local_rope},
                     config);
  read_attention_bias(json, config);
  config.attention.qk_norm = config.norms_plus_one = config.scaled_embedding = true;
  config.norm_place = NormPlace::kBoth;
  config.activation = GateActivation::kGeluTanh;
  config.attention.query_scalar =
      json.has("query_pre_attn_scalar") ? json.require_at_least(1, "query_pre_attn_scalar") : 256;
  refuse_unless_null(json, "final_logit_softcapping");
  refuse_unless_null(json, "attn_logit_softcapping");
  if (json.boolean("use_bidirectional_attention").value_or(false)) {
    json.refuse("use_bidirectional_attention", "is true, but attention is causal here");
  }
  // Every so many layers one attends to all tokens. transformers 5 writes the second name.
  int64_t pattern = 6;
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    pattern = json.has(key) ? json.require_at_least(1, key) : pattern;
  }
  read_layer_windows(
      json, read_window(json), [&](int64_t layer) { return (layer + 1) % pattern != 0; }, config);
  list_blocks(config);
  for (BlockSpec& block : config.blocks) {
    block.local_rope = block.window > 0;
  }
  return config;
}

void write_gemma3(const ModelConfig& config, nlohmann::ordered_json& json) {
  json.erase("hidden_act");
  json["hidden_activation"] = "gelu_pytorch_tanh";
  json["attention_bias"] = config.attention.qkv_bias;
  json["query_pre_attn_scalar"] = config.attention.query_scalar;
  json["sliding_window"] = window_json(config);
  json["layer_types"] = layer_types_json(config);
  json["final_logit_softcapping"] = json["attn_logit_softcapping"] = nullptr;
  add_global_and_local_rope(config, json);
}

}  // namespace

extern const Architecture kGemma3{"gemma3_text", "Gemma3ForCausalLM", read_gemma3, write_gemma3};

}  // namespace ringside::engine
