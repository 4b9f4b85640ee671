// Options of the trainer's endpoint from the configuration's bridge.* keys, and what the keys of
// stragglers say. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "rl/config/config.h"
#include "rl/rollouts/step_policy.h"
#include "rollout_bridge/trainer/trainer_endpoint.h"

namespace ringside::rl {

// Converts seconds to milliseconds and MiB to bytes. Reads the key files that config.curve names.
// Options without a configuration key keep their defaults.
// Blocks: on the key files.
// Throws: what read_secret_key and read_allowed_keys throw.
bridge::TrainerOptions trainer_options(const BridgeConfig& config, const std::string& run_id,
                                       int64_t trainer_term,
                                       const std::filesystem::path& journal_directory);

// Sets the rules by rollout.straggler_timeout_s, rounded up to milliseconds, and
// rollout.min_group_size.
void set_stragglers(StepRules& rules, const RolloutConfig& config);

}  // namespace ringside::rl
