// Fields of config.json that most architectures share.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/json/json_object.h"
#include "engine/models/model_config.h"

namespace ringside::engine {

// What a missing field means. transformers' classes differ in it.
struct FieldDefaults {
  int64_t head_dim = 0;                   // 0: hidden_size / num_attention_heads
  bool key_value_heads_required = true;   // false: as many as query heads
  const char* activation = "hidden_act";  // the key's name
};

// Sizes, heads, norm, tied embeddings and RoPE; refuses other activations and quantised weights
// other than bitsandbytes' nf4.
// Throws: std::runtime_error naming file and key on a missing or impossible value.
void read_shared_fields(const JsonObject& json, const FieldDefaults& defaults, ModelConfig& config);

// Reads attention_bias: of q, k, v and o.
void read_attention_bias(const JsonObject& json, ModelConfig& config);

// Refuses the sliding windows of the Qwen classes, which their released models do not use.
// Throws: std::runtime_error naming file and key.
void refuse_windows(const JsonObject& json);

// The fields of read_shared_fields().
void write_shared_fields(const ModelConfig& config, nlohmann::ordered_json& json);

}  // namespace ringside::engine
