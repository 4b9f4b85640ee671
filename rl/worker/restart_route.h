// Weight route that restarts the inference server, for servers that cannot change weights while
// they run (llama.cpp).
#pragma once

#include <memory>

#include "rl/worker/weight_route.h"

namespace ringside::rl {

// load() stops the server of the previous version, writes the version's Hugging Face directory,
// runs rollout.server_options.start_command with {model} (that directory) and {port} (of the url)
// filled in, and waits until the server answers, at most load_timeout_s. Returns kClosed if the
// command ends before, kTimeout after the time limit, and kUnsupported if another server has the
// port. The server is killed when the route is destroyed or when the thread that called load()
// ends.
// Throws: std::runtime_error without a start_command; std::invalid_argument without a port in the
// url; std::system_error when the directory for weights cannot be made.
std::unique_ptr<WeightRoute> make_restart_route(const Config& config);

}  // namespace ringside::rl
