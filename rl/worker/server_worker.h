// A rollout worker that drives an inference server outside of it (vLLM, SGLang, llama.cpp, our
// Python one): takes grants and weights from the bridge, has the server sample, scores, and sends
// rollouts back.
#pragma once

#include "rl/worker/worker_link.h"

namespace ringside::rl {

// Runs until the trainer ends the run or should_stop says so. The server is the one of
// config.rollout.server_options and must be up, unless the worker starts it itself (weights =
// restart); it needs to know nothing of Ringside.
//
// Nothing is sampled from weights that were not verified: after each loading, after any trouble
// with a connection and after an idle time, the server must first give the probe's log-probs
// (served_weights.h). What runs when new weights come is dealt with by
// rollout.server_options.pause.
//
// Blocks. Throws std::runtime_error when data, tokenizer, server or sampling settings do not fit,
// when the trainer refuses this worker, or when the server stays away or stays wrong for longer
// than server_options.load_timeout_s.
void run_server_worker(const Config& config, const WorkerSettings& settings);

}  // namespace ringside::rl
