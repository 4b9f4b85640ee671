// Client of the inference server that the configuration names.
#pragma once

#include <memory>

#include "rl/config/config.h"
#include "rl/data/held_out_prompts.h"
#include "rollout_bridge/servers/http_server.h"
#include "rollout_bridge/servers/inference_server.h"
#include "rollout_bridge/servers/vllm.h"

namespace ringside::rl {

// Makes the client; it is not connected yet. vocab_size: of the served model. adapter: shared by
// all clients of one server.
// Throws: std::invalid_argument on a malformed URL; std::runtime_error on an unreadable key file or
// rollout.server = embedded.
std::unique_ptr<bridge::InferenceServer> make_server(
    const Config& config, int64_t vocab_size,
    std::shared_ptr<bridge::SelectedAdapter> adapter = std::make_shared<bridge::SelectedAdapter>());

// Client options from rollout.server_options.
// Throws: std::runtime_error on an unreadable key file.
bridge::ServerOptions server_options(const Config& config, int64_t vocab_size);

// Sampling settings of every completion of the run.
bridge::SamplingSettings sampling_settings(const StatedSampling& stated);

}  // namespace ringside::rl
