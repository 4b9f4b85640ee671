// The live side of a run on trainer rank 0: owns the bridge endpoint, grants each step's groups when the weights that they
// may be sampled under are published, and queues what comes back.
#pragma once

#include <filesystem>
#include <memory>

#include "rl/config/config.h"
#include "rl/rollout_source.h"

namespace ringside::rl {

// Binds the endpoints, replays the journal under run_dir/bridge, raises the run epoch, and writes the bound addresses to
// run_dir/bridge/endpoint.json for workers that are started beside the run. `last_step`: no group is granted beyond it.
// restored_version: version of the weights the trainer starts with. Throws what bridge::TrainerEndpoint throws.
std::unique_ptr<RolloutSource> make_live_source(const Config& config, const std::string& run_id,
                                                const std::filesystem::path& run_dir,
                                                int64_t restored_version, int64_t last_step);

}  // namespace ringside::rl
