// PEFT directory of low-rank adapters: adapter_config.json and adapter_model.safetensors.
//
// Source: peft 0.21, LoraConfig.
#pragma once

#include <filesystem>
#include <string>

#include "engine/models/adapters.h"

namespace ringside::engine {

// Rank, alpha and targeted projections of a directory. lora_dropout is not used: adapters train
// without dropout.
// Throws: std::runtime_error naming file and key when a value is missing or wrong, or when a field
// that changes the result is not supported and not at its default: use_dora, use_rslora,
// rank_pattern, modules_to_save and every field that is not known; or naming a tensor that is no
// factor of a known projection.
AdapterOptions read_adapter_options(const std::filesystem::path& dir);

// Fills all factors.
// Throws: std::runtime_error as read_adapter_options; when the directory's options are not those of
// `adapters`; naming file and tensor when one is missing, of another shape, not floating-point, not
// finite, or belongs to no adapter of the model. The adapters may then be partly filled.
void load_adapters(const std::filesystem::path& dir, Adapters& adapters);

// Writes both files into an existing directory, the factors in the master dtype. PEFT loads it.
// base_model: path or name of the model that the adapters belong to. Neither atomic nor durable:
// write into an AtomicDirectory's path.
// Throws: std::runtime_error on a write failure.
void save_adapters(const Adapters& adapters, const std::filesystem::path& dir,
                   const std::string& base_model);

// The text of adapter_config.json.
std::string adapter_config_json(const AdapterOptions& options, const std::string& base_model);

// The options in words: "rank 8, alpha 16, projections q_proj, v_proj".
std::string describe(const AdapterOptions& options);

}  // namespace ringside::engine
