// Comparison of two trainings of a tiny model, for tests that compare layouts.
#pragma once

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/sharded_training.h"

namespace ringside::test {

// Trains on all ranks of a layout in fp64, as threads of this process. Returns rank 0's outcome.
inline ShardOutcome train_in_double(const ShardLayout& layout, const engine::ModelConfig& model,
                                    int64_t steps) {
  ShardOutcome outcome;
  const rl::ParallelConfig parallel = layout.config();
  run_ranks_in_memory(
      rl::mesh_shape(parallel),
      [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
        ShardOutcome own =
            train_sharded(layout, model, at::kDouble, at::kDouble, steps, mesh, groups);
        if (mesh.rank() == 0) {
          outcome = std::move(own);
        }
      },
      rl::sharding_axes(parallel));
  return outcome;
}

// The weights of all units, one behind the other.
inline at::Tensor all_weights(const ShardOutcome& outcome) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& unit : outcome.weights) {
    flat.push_back(unit.flatten());
  }
  return at::cat(flat);
}

// Checks losses, norms and weights, and that the model learned something. tolerance 0: to the bit.
inline void check_equal_training(const ShardOutcome& found, const ShardOutcome& expected,
                                 double tolerance) {
  const at::Tensor a = all_weights(expected), b = all_weights(found);
  REQUIRE(a.sizes() == b.sizes());
  REQUIRE(found.losses.size() == expected.losses.size());
  if (tolerance == 0.0) {
    CHECK(found.losses == expected.losses);
    CHECK(found.norms == expected.norms);
    CHECK(a.equal(b));
  } else {
    CHECK((a - b).abs().max().item<double>() < tolerance);
    for (std::size_t step = 0; step < expected.losses.size(); ++step) {
      CHECK(found.losses[step] == Approx(expected.losses[step]).epsilon(tolerance));
      CHECK(found.norms[step] == Approx(expected.norms[step]).epsilon(tolerance));
    }
  }
  CHECK(expected.losses.front() != expected.losses.back());
}

}  // namespace ringside::test
