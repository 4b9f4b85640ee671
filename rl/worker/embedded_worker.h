// A rollout worker with our own generator inside: takes grants and weights from the bridge, sends
// rollouts back.
#pragma once

#include "rl/worker/worker_link.h"

namespace ringside::rl {

// Runs until the trainer ends the run or should_stop says so. Samples group g of the trainer's data
// order, sample i, with a seed made of (config.seed, g, i, attempt), so a rollout sampled again by
// another worker is the same one under the same weights. Weights are swapped between batches only,
// so no completion spans two versions. Blocks. Throws std::runtime_error when the data, the
// tokenizer or the run does not fit, or the trainer refuses this worker.
void run_embedded_worker(const Config& config, const WorkerSettings& settings);

}  // namespace ringside::rl
