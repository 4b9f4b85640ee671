// Fields of config.json that most architectures share.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/architectures/rope_json.h"
#include "engine/json/json_object.h"
#include "engine/layers/model_config.h"

namespace ringside::engine {

// What a missing field means. transformers' classes differ in it.
struct FieldDefaults {
  int64_t head_dim = 0;                   // 0: hidden_size / num_attention_heads
  bool key_value_heads_required = true;   // false: as many as query heads
  const char* activation = "hidden_act";  // the key's name
  const char* activation_value = "silu";  // the only one that the architecture has
  bool intermediate_size = true;          // the model has MLPs of its own
  bool tied = false;                      // tie_word_embeddings
  bool mxfp4 = false;                     // experts may be stored in MXFP4
  // Of rope_json.h.
  void (*read_rope)(const JsonObject& json, ModelConfig& config) = engine::read_rope;
};

// Sizes, heads, norm, tied embeddings, RoPE and the length from which on others compute another
// attention; refuses other activations and quantised weights other than bitsandbytes' nf4, or MXFP4
// where the defaults allow it. A size that the config has already is that of a missing field.
// Throws: std::runtime_error naming file and key on a missing or impossible value.
void read_shared_fields(const JsonObject& json, const FieldDefaults& defaults, ModelConfig& config);

// Refuses quantised weights that are not read, by quantisation_problem().
void refuse_unread_quantisation(const JsonObject& json, bool mxfp4);

// Refuses another value of `key` than the expected one, which a missing key means. why: the end of
// the message, behind the number that was expected.
// Throws: std::runtime_error naming file and key.
void expect_integer(const JsonObject& json, const char* key, int64_t expected,
                    const std::string& why);

// The same for text.
void expect_text(const JsonObject& json, const char* key, const std::string& expected);

// Number of experts: num_experts (hub), or num_local_experts (transformers 5).
// Throws: std::runtime_error naming file and key when both are missing or they differ.
int64_t read_expert_count(const JsonObject& json);

// Reads attention_bias: of q, k, v and o; none if it is missing.
// Throws: std::runtime_error naming file and key when it is neither true nor false.
void read_attention_bias(const JsonObject& json, ModelConfig& config);

// Keeps what these fields say of layers that predict further tokens, to write it again. The fields
// that are missing are left out. Reading how many layers there are is the caller's.
void read_further_tokens(const JsonObject& json, std::initializer_list<const char*> keys,
                         ModelConfig& config);

// Passes over use_qk_norm, which says what classes that always norm heads do anyway.
// Throws: std::runtime_error naming file and key when it is neither true nor false.
void pass_over_qk_norm(const JsonObject& json);

// Reads layer_types: `window` (0 = none) is that of the layers named sliding_attention. Where
// layer_types is missing, these are the layers for which is_sliding holds. Call it after the
// experts are read.
// Throws: std::runtime_error naming file and key on another type, another number of layers, or a
// sliding layer without a window.
void read_layer_windows(const JsonObject& json, int64_t window,
                        const std::function<bool(int64_t layer)>& is_sliding, ModelConfig& config);

// Reads the windows of the Qwen classes: those of sliding_window, if use_sliding_window is true, in
// the layers of layer_types, or from max_window_layers on.
// Throws: as read_layer_windows.
void read_qwen_windows(const JsonObject& json, ModelConfig& config);

// For classes whose windows other fields decide: layer_types may say the same.
// Throws: std::runtime_error naming file and key when it says anything else.
void check_layer_types(const JsonObject& json, const ModelConfig& config);

// sliding_window; 0 = null. missing: the class's default in transformers.
// Throws: std::runtime_error naming file and key when it is less than 1.
int64_t read_window(const JsonObject& json, int64_t missing = 4096);

// "sliding_attention" or "full_attention" for each layer.
nlohmann::ordered_json layer_types_json(const ModelConfig& config);

// The model's largest window in tokens, or null.
nlohmann::ordered_json window_json(const ModelConfig& config);

// The fields of read_qwen_windows().
void write_qwen_windows(const ModelConfig& config, nlohmann::ordered_json& json);

// The fields of read_shared_fields().
void write_shared_fields(const ModelConfig& config, nlohmann::ordered_json& json);

}  // namespace ringside::engine
