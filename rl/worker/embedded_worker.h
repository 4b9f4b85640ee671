// Rollout worker with Ringside's own generator: receives grants and weights through the bridge and
// sends rollouts back.
#pragma once

#include "rl/worker/worker_link.h"

namespace ringside::rl {

// Runs until the trainer ends the run or should_stop returns true. Samples sample i of group g of
// the trainer's data order with a seed made of (config.seed, g, i, attempt). A retry on another
// worker under the same weights therefore gives the same rollout. Weights change between batches
// only, so no completion spans two versions.
// Blocks: until the run is over.
// Throws: std::runtime_error when the data, the tokenizer or the run does not fit, or the trainer
// rejects this worker.
void run_embedded_worker(const Config& config, const WorkerSettings& settings);

}  // namespace ringside::rl
