// Reader and writer of ModelConfig as config.json and generation_config.json of a Hugging Face
// directory.
#pragma once

#include <filesystem>
#include <string>

#include "engine/layers/model_config.h"

namespace ringside::engine {

// Which parts of a multimodal model are read. The text part always is.
struct ReadOptions {
  bool vision = false;  // its vision tower, too
};

// Reads a directory's config.json, or the given file. Supports the model_types of architectures()
// as written by transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters), and the parts
// of their multimodal types that the options name. Missing shapes get transformers' defaults;
// missing ids stay unset. The eos ids are those of generation_config.json in the same directory
// when it has any, because generation stops there. Throws: std::runtime_error naming file and key
// when a value is missing, has the wrong type, is contradictory, or is not supported: another
// model_type, a field of unknown meaning, another activation or rope type, quantised weights other
// than those of quantisation_problem(), a GGUF file, a model_type without a tower where one is
// asked for.
ModelConfig load_model_config(const std::filesystem::path& dir_or_file,
                              const ReadOptions& options = {});

// What to do about a model that is a GGUF file, or a directory with one and without config.json; ""
// for other paths.
std::string gguf_problem(const std::filesystem::path& path);

// The text of a config.json that transformers 4 and 5 both read. That of a multimodal model is the
// one it was read from, with the fields of the parts that were read changed. dtype: "float32",
// "bfloat16", ...
// Throws: std::invalid_argument when config.model_type is that of no architecture, and when it has
// a vision tower but was not read from a multimodal model's file.
std::string model_config_json(const ModelConfig& config, const std::string& dtype);

// The text of a generation_config.json that stops at the config's eos ids.
std::string generation_config_json(const ModelConfig& config);

}  // namespace ringside::engine
