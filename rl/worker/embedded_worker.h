// A rollout worker with our own generator inside: takes grants and weights from the bridge, sends rollouts back.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "rl/config/config.h"

namespace ringside::rl {

struct WorkerSettings {
  std::string worker_id;
  // Where the trainer writes its addresses; empty when the configuration's bridge.* name them.
  std::filesystem::path endpoint_file;
  // Asked between messages and batches; true leaves with BYE.
  std::function<bool()> should_stop;
};

// Runs until the trainer ends the run or should_stop says so. Samples group g of the trainer's data order, sample i, with a
// seed made of (config.seed, g, i, attempt), so a rollout sampled again by another worker is the same one under the same
// weights. Weights are swapped between batches only, so no completion spans two versions. Blocks. Throws
// std::runtime_error when the data, the tokenizer or the run does not fit, or the trainer refuses this worker.
void run_embedded_worker(const Config& config, const WorkerSettings& settings);

}  // namespace ringside::rl
