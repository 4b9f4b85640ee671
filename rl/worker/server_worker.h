// Rollout worker that drives an external inference server (vLLM, SGLang, llama.cpp, our Python
// one): receives grants and weights through the bridge, requests completions from the server,
// scores them, and sends rollouts back.
#pragma once

#include "rl/worker/worker_link.h"

namespace ringside::rl {

// Runs until the trainer ends the run or should_stop returns true. The server is that of
// config.rollout.server_options. It must be running, unless the worker starts it (weights =
// restart). It needs no knowledge of Ringside.
//
// Nothing is sampled from unverified weights: after each loading, after any connection error and
// after an idle period the server must return the probe's log-probs (served_weights.h).
// rollout.server_options.pause sets what happens to running requests when new weights arrive.
//
// Blocks: until the run is over.
// Throws: std::runtime_error when data, tokenizer, server or sampling settings do not fit, when the
// trainer rejects this worker, or when the server is unreachable or fails verification for longer
// than server_options.load_timeout_s.
void run_server_worker(const Config& config, const WorkerSettings& settings);

}  // namespace ringside::rl
