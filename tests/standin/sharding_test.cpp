// Guards: sharding that reads a gathered buffer before it is there, frees it while it is read, or
// keeps more on the device than a shard.
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/sharded_training.h"
#include "tests/support/standin/ranks.h"
#include "tests/support/tiny_model.h"

using namespace ringside;

namespace {

using Layout = test::ShardLayout;
using Outcome = test::ShardOutcome;

Outcome train(const Layout& layout, at::ScalarType dtype, bool on_standin) {
  Outcome outcome;
  const auto body = [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups) {
    auto own = test::train_sharded(layout, test::tiny_config(), dtype, at::kFloat, 3, mesh, groups);
    if (mesh.rank() == 0) {
      outcome = std::move(own);
    }
  };
  const rl::ParallelConfig parallel = layout.config();
  const auto axes = rl::sharding_axes(parallel);
  if (on_standin) {
    standin::run_standin_ranks(
        rl::mesh_shape(parallel),
        [&](const sp::Mesh& mesh, const sp::ProcessGroups& groups, c10::Device) {
          body(mesh, groups);
        },
        std::chrono::seconds(20), axes);
  } else {
    test::run_ranks(rl::mesh_shape(parallel), body, std::chrono::seconds(30), axes);
  }
  return outcome;
}

}  // namespace

TEST_CASE("a sharded model on the stand-in has the CPU's bits") {
  using Mode = rl::CpFsdpMode;
  const std::vector<Layout> layouts{
      {.shard = 2},
      {.shard = 3, .recompute = true},
      {.shard = 4, .stage = 2},
      {.ulysses = 2},
      {.ring = 2, .recompute = true},
      {.ring = 2, .ulysses = 2, .mode = Mode::kUlyssesOnly},
      {.shard = 2, .ring = 2, .mode = Mode::kNone, .stage = 1},
      {.replicate = 2, .shard = 2, .stage = 1, .recompute = true},
      {.replicate = 2, .shard = 2, .stage = 3},
  };
  for (const Layout& layout : layouts) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(layout.name(), dtype);
      const Outcome expected = train(layout, dtype, /*on_standin=*/false);
      const standin::Scope scope;
      const Outcome found = train(layout, dtype, /*on_standin=*/true);
      CHECK(scope.text() == "");
      CHECK(found.losses == expected.losses);
      CHECK(found.norms == expected.norms);
      REQUIRE(found.weights.size() == expected.weights.size());
      for (std::size_t u = 0; u < found.weights.size(); ++u) {
        CHECK(at::equal(found.weights[u], expected.weights[u]));
      }
    }
  }
}
