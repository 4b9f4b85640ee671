// The client of the inference server that a configuration names.
#pragma once

#include <memory>

#include "rl/config/config.h"
#include "rollout_bridge/servers/http_server.h"
#include "rollout_bridge/servers/inference_server.h"

namespace ringside::rl {

// Not connected yet. vocab_size: of the model it serves. Throws std::invalid_argument on a URL that
// is none, std::runtime_error on an unreadable key file or rollout.server = embedded.
std::unique_ptr<bridge::InferenceServer> make_server(const Config& config, int64_t vocab_size);

// What rollout.server_options means to a client of a server. Throws std::runtime_error on an
// unreadable key file.
bridge::ServerOptions server_options(const Config& config, int64_t vocab_size);

// What every completion of the run is sampled from.
bridge::SamplingSettings sampling_settings(const RolloutConfig& config);

}  // namespace ringside::rl
