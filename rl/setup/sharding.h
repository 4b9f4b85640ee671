// Sharding of models over ranks, as the configuration describes it.
#pragma once

#include <memory>
#include <vector>

#include "engine/models/pipeline.h"
#include "engine/params/sharding.h"
#include "rl/config/config.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

// Ranks over which parameters are cut, and those that hold the same part.
struct ShardAxes {
  sp::Axes shard, replicas;
  bool operator==(const ShardAxes&) const = default;
};

// Of a model; kNone and kLoss where every rank holds the whole model.
ShardAxes shard_axes(const ParallelConfig& config);
// Of the experts of one rank, with parallel.expert_parallel_size above 1: over the ranks with the
// same experts, unless every rank holds the rest of the model whole.
ShardAxes expert_shard_axes(const ParallelConfig& config);

// Of the parameters that tensor-parallel ranks use whole: as shard_axes(), the tensor axis
// included.
ShardAxes whole_shard_axes(const ParallelConfig& config);

// Every set of axes that the models need a process group for. Empty where a world of whole models
// needs none.
std::vector<sp::Axes> sharding_axes(const ParallelConfig& config);

// How the models of this rank are cut; over one rank where every rank holds the whole model.
// Throws: std::invalid_argument when `groups` was connected without sharding_axes().
std::shared_ptr<const engine::Sharding> make_sharding(const ParallelConfig& config,
                                                      const sp::ProcessGroups& groups);

// How experts are divided among this rank's group; null with parallel.expert_parallel_size 1.
// Throws: as make_sharding.
std::shared_ptr<const engine::ExpertSharding> make_expert_sharding(const ParallelConfig& config,
                                                                   const sp::ProcessGroups& groups);

// How matrices are divided among this rank's group; null with parallel.tensor_parallel_size 1.
// Throws: as make_sharding.
std::shared_ptr<const engine::TensorSharding> make_tensor_sharding(const ParallelConfig& config,
                                                                   const sp::ProcessGroups& groups);

// The stages of a rank of a pipeline, as sp::plan_pipeline() takes them.
sp::PipelineShape pipeline_shape(const ParallelConfig& config);
// The schedule that parallel.pipeline_schedule stands for.
sp::PipelineSchedule pipeline_schedule(const ParallelConfig& config);
// Forwards before the first backward beyond the schedule's own, which hide transfers and
// micro-batches of unequal work: P-1 with schedule auto and layers that are recomputed, whose
// forwards keep little; else none.
int64_t pipeline_warm_up(const Config& config);
// The documents that stages are balanced for: as long as the recipe allows.
engine::TypicalTokens typical_tokens(const Config& config);

// How the models of this rank are divided into stages; null with parallel.pipeline_parallel_size 1.
std::shared_ptr<const engine::Pipeline> make_pipeline(const Config& config,
                                                      const sp::ProcessGroups& groups);

// What is wrong with parallel.expert_parallel_size for layers of `experts` experts (0: the model
// has none): it may be 1, or at most their number. "" when nothing is.
std::string expert_count_problem(const ParallelConfig& config, int64_t experts);

// Sets parallel.data_parallel_replicate_size, if it is 0, to the number of copies that `world`
// ranks hold. `world` 0: as many ranks as one copy needs.
// Throws: std::invalid_argument that names the remainder when a copy's ranks do not divide the
// world.
void fix_replicas(ParallelConfig& config, int64_t world);

}  // namespace ringside::rl
