// Settings that are valid words and that a run would refuse all the same.
#pragma once

#include "rl/preflight/model_files.h"

namespace ringside::rl {

// What training cannot use: a cut distribution, advantages that nobody brings.
void check_training_settings(const Config& config, const PreflightScope& scope,
                             PreflightReport& report);

// Each reward of rollout.reward is made as a worker makes it; and the stop text.
void check_rewards(const Config& config, const ModelFiles& files, PreflightReport& report);

// Addresses to bind, and key files.
void check_bridge(const Config& config, const PreflightScope& scope, PreflightReport& report);

// rollout.server_options of a server outside the worker. Does not connect: the server may start
// later.
void check_server(const Config& config, PreflightReport& report);

}  // namespace ringside::rl
