// Fingerprints of the files that a run trains from: models and data.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::rl {

// 32 hex digits by key, e.g. "model.path".
using SourceFingerprints = std::map<std::string, std::string>;

// Of model.path, model.reference_path, algorithm.distillation.teacher and of each of teachers that
// is a directory, algorithm.critic.model_path, lora.path, data.train, data.sft, data.sft_eval,
// data.preferences and data.preferences_eval, as far as they are set and all their files can be
// read on this machine. Of a model's directory its weights, configuration and tokenizer count.
// Blocks: until the files are read as fingerprint_of() says.
SourceFingerprints source_fingerprints(const Config& config);

// XXH3-128 of names (without folders), sizes and contents, in this order. Of a file above 64 MiB
// its first MiB and 4096 blocks of 4 KiB count, evenly spaced to its end: another checkpoint of the
// same model differs everywhere, but a change of a few bytes may be missed.
// Throws: std::runtime_error naming a file that cannot be read.
std::string fingerprint_of(const std::vector<std::filesystem::path>& files);

}  // namespace ringside::rl
