// Settings that a trainer and its workers compare when a worker joins. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/layers/model_config.h"
#include "rl/config/config.h"
#include "rl/data/held_out_prompts.h"
#include "rl/data/prompt_set.h"
#include "rollout_bridge/protocol/settings.h"

namespace ringside::rl {

// Fingerprints are XXH3-128. One covers data.shuffle and each prompt's text and answer in the
// files' order, the files of its images, the rules of images, and the weights of the files. One
// covers tokenizer.json in model.path, independent of white space and key order. prompts: empty if
// unknown; they and a tokenizer.json that cannot be read are not stated. held_out: those that
// workers make samples of, with a fingerprint of their own; of no set otherwise. Blocks: on reading
// tokenizer.json. Throws: what parse_rewards and engine::parse_adapter_targets throw.
bridge::Settings shared_settings(const Config& config, const engine::ModelConfig& model,
                                 const PromptSet& prompts, const HeldOutPrompts& held_out,
                                 std::optional<std::vector<int64_t>> stop_ids);

}  // namespace ringside::rl
