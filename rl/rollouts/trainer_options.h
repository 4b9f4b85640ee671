// What bridge.* of the configuration means to the trainer's endpoint. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "rl/config/config.h"
#include "rollout_bridge/trainer/trainer_endpoint.h"

namespace ringside::rl {

// Seconds become milliseconds, MiB bytes. Reads the key files that config.curve names; throws what
// read_secret_key and read_allowed_keys throw. What has no key stays at its default.
bridge::TrainerOptions trainer_options(const BridgeConfig& config, const std::string& run_id,
                                       int64_t trainer_term,
                                       const std::filesystem::path& journal_directory);

}  // namespace ringside::rl
