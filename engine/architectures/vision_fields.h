// Fields of the vision tower of a multimodal model: vision_config, and the sections of RoPE.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/architectures/multimodal.h"
#include "engine/json/json_object.h"
#include "engine/layers/model_config.h"

namespace ringside::engine {

// The tower of such a model. json: the whole config.json; text: the fields of its text part; model:
// what was read of these.
// Throws: std::runtime_error naming file and key on a missing or impossible value; json.refuse() on
// one that cannot be honoured.
VisionConfig read_vision_fields(const JsonObject& json, const JsonObject& text,
                                const MultimodalType& type, const ModelConfig& model);

// Sets the fields of vision_config in the whole config.json that the model was read from. Others
// stay, and so do the sections of RoPE. dtype: "float32", "bfloat16", ...
void write_vision_fields(const ModelConfig& model, const std::string& dtype,
                         nlohmann::ordered_json& json);

}  // namespace ringside::engine
