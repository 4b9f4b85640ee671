// New weights by starting the inference server anew, for servers that cannot change them while they
// run (llama.cpp).
#pragma once

#include <memory>

#include "rl/worker/weight_route.h"

namespace ringside::rl {

// load() stops the server of the version before, writes the version's Hugging Face directory, runs
// rollout.server_options.start_command with {model} (that directory) and {port} (of the url) filled
// in, and waits until the server answers, load_timeout_s at most. kClosed when the command ends
// before, kTimeout when time is up. The server dies with the route, and with the thread that called
// load(). Throws std::runtime_error without a start_command or a port.
std::unique_ptr<WeightRoute> make_restart_route(const Config& config);

}  // namespace ringside::rl
