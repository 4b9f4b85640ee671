// Fields of experts that sigmoid routers choose, in the layers behind the first dense ones
// (DeepSeek-V3, GLM-4.5).
#pragma once

#include <nlohmann/json.hpp>

#include "engine/json/json_object.h"
#include "engine/layers/model_config.h"

namespace ringside::engine {

// Reads the experts and the channel mixer of each layer.
// Throws: std::runtime_error naming file and key on missing or impossible values.
void read_sigmoid_experts(const JsonObject& json, ModelConfig& config);

// The fields of read_sigmoid_experts().
void write_sigmoid_experts(const ModelConfig& config, nlohmann::ordered_json& json);

}  // namespace ringside::engine
