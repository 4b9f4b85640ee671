// Fields of config.json that describe the experts of the Qwen classes.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/json/json_object.h"
#include "engine/layers/model_config.h"

namespace ringside::engine {

// Reads the experts, and which layers have them. num_hidden_layers is read already. normalised:
// what a missing norm_topk_prob means.
// Throws: std::runtime_error naming file and key.
void read_qwen_experts(const JsonObject& json, bool normalised, ModelConfig& config);

// The same with the gated shared expert of Qwen3-Next.
// Throws: std::runtime_error naming file and key.
void read_gated_shared_experts(const JsonObject& json, ModelConfig& config);
void write_gated_shared_experts(const ModelConfig& config, nlohmann::ordered_json& json);

// The fields of read_qwen_experts(), the number of experts under both of its names.
void write_qwen_experts(const ModelConfig& config, nlohmann::ordered_json& json);

}  // namespace ringside::engine
