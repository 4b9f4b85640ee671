// Table of model architectures, by the model_type of config.json.
//
// A new one is a file beside this one, which defines an Architecture, and a line in families.inc.
// Its functions start from the shared fields (shared_fields.h); layers are described by
// ModelConfig's fields, which engine/models computes with.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "engine/json/json_object.h"
#include "engine/layers/model_config.h"

namespace ringside::engine {

// How one model_type is read and written.
struct Architecture {
  const char* model_type;
  const char* class_name;  // in transformers
  // Everything but token ids.
  // Throws: std::runtime_error naming file and key, as load_model_config.
  ModelConfig (*read)(const JsonObject& json);
  // Adds what write_shared_fields() does not write. The config is one that `read` could have made.
  void (*write)(const ModelConfig& config, nlohmann::ordered_json& json);
};

// Every architecture that this program reads, one for each model_type.
std::span<const Architecture* const> architectures();

// The architecture of a model_type; nullptr: there is none of this name.
const Architecture* find_architecture(const std::string& model_type);

// The model_types in words: "deepseek_v3, gemma3_text, llama, ... or qwen3_next", and those whose
// text part is read.
std::string architecture_names();

}  // namespace ringside::engine
