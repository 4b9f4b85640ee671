// Connection of a worker to its inference server.
#pragma once

#include <cstdint>
#include <memory>

#include "rl/config/config.h"
#include "rl/worker/link_events.h"
#include "rollout_bridge/servers/inference_server.h"
#include "rollout_bridge/servers/vllm.h"

namespace ringside::rl {

// The server of config.rollout.server_options, connected unless this worker starts it. It can
// sample as the recipe says, and takes images where prompts have some. vocab_size: of the model.
// adapter: shared by all clients of one server.
// Blocks: until the server answers, at most rollout.server_options.load_timeout_s.
// Throws: std::runtime_error when it does not answer or cannot do this; what make_server throws.
std::unique_ptr<bridge::InferenceServer> connected_server(
    const Config& config, const WorkerSettings& settings, int64_t vocab_size,
    std::shared_ptr<bridge::SelectedAdapter> adapter);

}  // namespace ringside::rl
