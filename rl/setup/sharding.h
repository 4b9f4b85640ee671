// Sharding of models over ranks, as the configuration describes it.
#pragma once

#include <memory>
#include <vector>

#include "engine/params/sharding.h"
#include "rl/config/config.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

// Axes of the ranks that share one copy of a model, and of those that hold the same part of it. The
// process groups need a group for each. Empty where every rank holds the whole model.
std::vector<sp::Axes> sharding_axes(const ParallelConfig& config);

// How the models of this rank are cut; over one rank where every rank holds the whole model.
// Throws: std::invalid_argument when `groups` was connected without sharding_axes().
std::shared_ptr<const engine::Sharding> make_sharding(const ParallelConfig& config,
                                                      const sp::ProcessGroups& groups);

// Sets parallel.data_parallel_replicate_size, if it is 0, to the number of copies that `world`
// ranks hold. `world` 0: as many ranks as one copy needs. Throws: std::invalid_argument that names
// the remainder when a copy's ranks do not divide the world.
void fix_replicas(ParallelConfig& config, int64_t world);

}  // namespace ringside::rl
