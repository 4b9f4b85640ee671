// Rollout worker whose samples are made by a harness: an agent, or any program that calls OpenAI's
// or Anthropic's API. The model is our own decoder.
#pragma once

#include "rl/worker/worker_link.h"

namespace ringside::rl {

// Runs until the trainer ends the run or should_stop returns true. Serves the gateway
// (rl/gateway/gateway_server.h) at rollout.harness_options.address. With rollout.harness
// python(FILE:FUNCTION) it starts that harness; otherwise one from elsewhere claims the sessions.
// Blocks: until the run is over.
// Throws: std::runtime_error when data, tokenizer, address, harness or the run do not fit, when the
// trainer rejects this worker, and when the harness ends.
void run_session_worker(const Config& config, const WorkerSettings& settings);

}  // namespace ringside::rl
