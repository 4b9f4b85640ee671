// Checks of settings that are valid by themselves but that a run would reject.
#pragma once

#include "rl/preflight/model_files.h"

namespace ringside::rl {

// Rejects a device that this program or this machine does not have.
void check_device(const Config& config, PreflightReport& report);
// Rejects an sp.device_speeds that is neither a readable file nor a known device.
void check_device_speeds(const Config& config, PreflightReport& report);

// Rejects settings that training cannot use: a truncated sampling distribution, advantages that no
// source provides, and adapters to publish where rollouts are brought.
void check_training_settings(const Config& config, const PreflightScope& scope,
                             PreflightReport& report);

// Creates each reward of rollout.reward as a worker does, and checks the stop text.
// Blocks: until Python rewards are loaded, as PythonReward::load().
void check_rewards(const Config& config, const ModelFiles& files, PreflightReport& report);

// Checks the addresses to bind and the key files.
void check_bridge(const Config& config, const PreflightScope& scope, PreflightReport& report);

// Checks rollout.server_options of an external server. Does not connect: the server may start
// later.
void check_server(const Config& config, PreflightReport& report);

}  // namespace ringside::rl
