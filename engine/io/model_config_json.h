// config.json and generation_config.json of a Hugging Face directory, read into a ModelConfig and
// written from one.
#pragma once

#include <filesystem>
#include <string>

#include "engine/models/model_config.h"

namespace ringside::engine {

// Reads a directory's config.json, or the file given. Understands model_type qwen3, qwen2 and llama
// as transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters) write them, with
// transformers' defaults for shapes left out; ids left out stay unset. The eos ids are those of
// generation_config.json beside it where that names any, since generation stops there. Throws
// std::runtime_error that names file and key when something is missing, of the wrong type,
// contradictory, or would need what the decoder lacks: another model_type, activation, rope type,
// sliding windows, quantized weights.
ModelConfig load_model_config(const std::filesystem::path& dir_or_file);

// The text of a config.json that transformers 4 and 5 both read. dtype: "float32", "bfloat16", ...
std::string model_config_json(const ModelConfig& config, const std::string& dtype);

// The text of a generation_config.json that stops at the config's eos ids.
std::string generation_config_json(const ModelConfig& config);

}  // namespace ringside::engine
