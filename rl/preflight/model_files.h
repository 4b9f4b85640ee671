// The model's directories: configuration, tokenizer and headers of the weights.
#pragma once

#include <optional>

#include "engine/models/model_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "rl/preflight/preflight.h"

namespace ringside::rl {

// What could be read; what could not is among the mistakes.
struct ModelFiles {
  std::optional<engine::ModelConfig> model;
  std::optional<engine::Tokenizer> tokenizer;
};

// model.path, and of reference and critic what the algorithm uses. The tokenizer only where
// `needs_tokenizer`.
ModelFiles check_model_files(const Config& config, bool needs_tokenizer, PreflightReport& report);

}  // namespace ringside::rl
