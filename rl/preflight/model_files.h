// Checks of the model's directories: configuration, tokenizer and headers of the weights.
#pragma once

#include <optional>

#include "engine/models/model_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "rl/preflight/preflight.h"

namespace ringside::rl {

// The parts that could be read. The others are reported as mistakes.
struct ModelFiles {
  std::optional<engine::ModelConfig> model;
  std::optional<engine::Tokenizer> tokenizer;
};

// Checks model.path, and the directories of reference and critic that the algorithm uses. Reads the
// tokenizer only if `needs_tokenizer`.
ModelFiles check_model_files(const Config& config, bool needs_tokenizer, PreflightReport& report);

}  // namespace ringside::rl
