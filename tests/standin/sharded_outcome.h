// What a training of ranks leaves, on the CPU or on the stand-in accelerator.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "tests/support/ranks.h"
#include "tests/support/sharded_training.h"
#include "tests/support/standin/ranks.h"

namespace ringside::test {

// The outcome of rank 0 after so many steps of train_sharded().
inline ShardOutcome train_sharded_on(bool on_standin, const ShardLayout& layout,
                                     const engine::ModelConfig& model, at::ScalarType dtype,
                                     int64_t steps) {
  ShardOutcome outcome;
  const auto body = [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    auto own = train_sharded(layout, model, dtype, at::kFloat, steps, mesh, groups);
    if (mesh.rank() == 0) {
      outcome = std::move(own);
    }
  };
  const rl::ParallelConfig parallel = layout.config();
  const auto axes = rl::sharding_axes(parallel);
  if (on_standin) {
    standin::run_standin_ranks_in_memory(
        rl::mesh_shape(parallel),
        [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups, c10::Device) {
          body(mesh, groups);
        },
        std::chrono::seconds(20), axes);
  } else {
    run_ranks_in_memory(rl::mesh_shape(parallel), body, axes);
  }
  return outcome;
}

}  // namespace ringside::test
