// Fields of config.json of models with gated delta nets beside gated attention: Qwen3-Next,
// Qwen3.5.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/json/json_object.h"
#include "engine/layers/model_config.h"

namespace ringside::engine {

// Reads the shared fields, those of the attention, RoPE of a part of each head, and the delta net's
// heads. intermediate_size: whether the model has MLPs of its own.
// Throws: std::runtime_error naming file and key.
void read_delta_net_fields(const JsonObject& json, ModelConfig& config,
                           bool intermediate_size = true);

// Reads which layers have a delta net: layer_types, or all but every full_attention_interval-th.
// Call it after the experts are read.
// Throws: std::runtime_error naming file and key.
void read_delta_net_layers(const JsonObject& json, ModelConfig& config);

// Adds the fields of both to those of write_shared_fields(), with layer_types for every layer.
void write_delta_net_fields(const ModelConfig& config, nlohmann::ordered_json& json);

}  // namespace ringside::engine
