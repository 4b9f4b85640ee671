// Settings that a trainer and its workers compare when a worker joins. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/models/model_config.h"
#include "rl/config/config.h"
#include "rl/data/text_data.h"
#include "rollout_bridge/protocol/settings.h"

namespace ringside::rl {

// Fingerprints are XXH3-128: of data.shuffle and each prompt's text and answer in the file's order,
// and of tokenizer.json in model.path, whatever its white space and order of keys. prompts: empty
// where they are not known. Throws what parse_rewards throws.
bridge::Settings shared_settings(const Config& config, const engine::ModelConfig& model,
                                 std::span<const Prompt> prompts,
                                 std::optional<std::vector<int64_t>> stop_ids);

}  // namespace ringside::rl
