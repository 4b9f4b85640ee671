// Settings that a trainer and its workers compare when a worker joins. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/models/model_config.h"
#include "rl/config/config.h"
#include "rl/data/prompt_set.h"
#include "rollout_bridge/protocol/settings.h"

namespace ringside::rl {

// Fingerprints are XXH3-128. One covers data.shuffle and each prompt's text and answer in the
// file's order. One covers tokenizer.json in model.path, independent of white space and key order.
// prompts: empty if unknown.
// Throws: what parse_rewards throws.
bridge::Settings shared_settings(const Config& config, const engine::ModelConfig& model,
                                 const PromptSet& prompts,
                                 std::optional<std::vector<int64_t>> stop_ids);

}  // namespace ringside::rl
