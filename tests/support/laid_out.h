// Configurations on meshes.
#pragma once

#include "rl/config/config.h"
#include "sp/mesh/mesh.h"

namespace ringside::test {

// The configuration with every axis as long as the mesh has it.
inline rl::Config laid_out(rl::Config config, const sp::MeshShape& shape) {
  config.parallel.data_parallel_replicate_size = shape.dp_replicate;
  config.parallel.data_parallel_shard_size = shape.dp_shard;
  config.parallel.ringattn_parallel_size = shape.ring;
  config.parallel.ulysses_parallel_size = shape.ulysses;
  config.parallel.expert_parallel_size = shape.expert;
  config.parallel.pipeline_parallel_size = shape.pipeline;
  config.parallel.tensor_parallel_size = shape.tensor;
  return config;
}

}  // namespace ringside::test
