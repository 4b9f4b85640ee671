// Checks of the model's directories: configuration, tokenizer and headers of the weights.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "engine/layers/model_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "rl/preflight/preflight.h"

namespace ringside::rl {

// The reason why `path` cannot be a model's directory, as a sentence without its subject: "is X,
// which does not exist; ..."; "" when it can. Reads the file system.
std::string model_directory_problem(const std::filesystem::path& path);

// The parts that could be read. The others are reported as mistakes.
struct ModelFiles {
  std::optional<engine::ModelConfig> model;
  std::optional<engine::Tokenizer> tokenizer;
};

// Checks model.path, lora.path, and the directories of reference, teacher and critic that the
// algorithm uses. Checks that the parallel layout, router_replay, async_ulysses and the adapters
// suit the model. Reads the tokenizer only if `needs_tokenizer`. Never throws for invalid user
// input.
ModelFiles check_model_files(const Config& config, bool needs_tokenizer, PreflightReport& report);

}  // namespace ringside::rl
