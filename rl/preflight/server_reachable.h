// Whether the inference server of a recipe answers.
#pragma once

#include "rl/preflight/preflight.h"

namespace ringside::rl {

// Asks the server at rollout.server_options.url for its health. Adds a note that names the address
// and the problem if it does not answer: workers wait for a server that starts later. Does nothing
// without an external server, and if a worker starts the server itself.
// Blocks: until the server has answered, at most 5 s.
void note_server(const Config& config, PreflightReport& report);

}  // namespace ringside::rl
