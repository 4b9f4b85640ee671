// Settings of a dry run: the recipe's, with small sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rl/config/config.h"

namespace ringside::tools {

inline constexpr int64_t kDryRunSteps = 2;

// The recipe's settings with two steps, short texts, small batches, an embedded generator, the CPU,
// and an evaluation and a checkpoint at every step. Kept are the algorithm, the adapters (of rank 4
// at most), the dtype, what is sharded, offloaded and recomputed, and the axes of the mesh. If the
// mesh has more than `max_ranks` ranks, axes of more than 2 ranks get 2, the largest first;
// expert_parallel_size and sp.virtual_ranks follow. rollout.stop and lora.path become empty, and
// bridge.* the defaults. The other paths and the rewards stay; prepare_dry_run() replaces them.
rl::Config small_config(const rl::Config& config, int64_t max_ranks);

// "key: value -> new value" for each key whose value differs.
std::vector<std::string> describe_changes(rl::Config from, rl::Config to);

}  // namespace ringside::tools
