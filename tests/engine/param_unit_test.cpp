// Guards: a unit in host memory that is taken for a cut one, or for one that is used where it is; a
// gradient that is lost when a unit is moved between its forward and its backward.
#include "engine/params/param_unit.h"

#include <ATen/ATen.h>

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/params/sharding.h"
#include "sp/mesh/communicator.h"
#include "tests/support/catch.h"

namespace ringside::engine {
namespace {

const std::vector<ParamSpec> kSpecs{{"w", {2, 3}}, {"b", {3}}};

// One rank whose master weights are in host memory.
ComputeContext host_context() {
  ComputeContext context(at::kDouble);
  const std::shared_ptr<sp::Communicator> alone = sp::make_single_rank_communicator();
  context.sharding = std::make_shared<const Sharding>(Sharding{alone, alone});
  context.host_master = true;
  return context;
}

TEST_CASE("a layout places parameters one after another and views them in any flat buffer") {
  const UnitLayout layout("unit", kSpecs);
  CHECK(layout.numel() == 9);
  CHECK(layout.range(1).offset == 6);
  CHECK(layout.range(1).numel == 3);
  CHECK(layout.shapes(at::kHalf).shapes == std::vector<std::vector<int64_t>>{{2, 3}, {3}});
  const at::Tensor buffer = at::arange(9);
  CHECK(layout.view_of(buffer, 0).equal(at::arange(6).view({2, 3})));
  CHECK(layout.view_of(buffer, 1).equal(at::arange(6, 9)));
  CHECK_THROWS_WITH(layout.view_of(at::arange(8), 0), Catch::Contains("unit has 9 elements"));
  CHECK_THROWS_AS(layout.range(2), std::out_of_range);
}

TEST_CASE("a unit in host memory is gathered, though no other rank has a part of it") {
  const ParamUnit whole("unit", kSpecs, at::kDouble);
  CHECK(whole.storage().is_whole());
  CHECK_FALSE(whole.storage().is_gathered());
  CHECK(whole.gathered().gather() == nullptr);

  const ParamUnit on_host("unit", kSpecs, host_context());
  CHECK(on_host.storage().is_gathered());
  CHECK_FALSE(on_host.storage().is_cut());
  CHECK_FALSE(on_host.storage().is_whole());
  assign(on_host.storage(), 1, at::tensor({1.0, 2.0, 3.0}, at::kDouble));
  on_host.changed();
  CHECK(on_host.gathered().materialize(at::kDouble)[1].value.equal(
      at::tensor({1.0, 2.0, 3.0}, at::kDouble)));
  CHECK_THROWS_WITH(on_host.view(1), Catch::Contains("no whole parameters"));
  CHECK_THROWS_WITH(ParamUnit("unit", kSpecs,
                              [] {
                                ComputeContext context = host_context();
                                context.sharding = nullptr;
                                return context;
                              }()),
                    Catch::Contains("needs a sharding"));
}

TEST_CASE("a unit that is moved between forward and backward gets its gradient") {
  std::vector<at::Tensor> gradients;
  std::vector<bool> lasts;
  auto first = std::make_unique<ParamUnit>("unit", kSpecs, host_context());
  first->gathered().on_gradient([&](at::Tensor gradient, bool last) {
    gradients.push_back(gradient.clone());
    lasts.push_back(last);
  });
  const auto loss = [](const ParamUnit& unit, double factor) {
    return unit.gathered().materialize(at::kDouble)[1].leaf.sum() * factor;
  };
  const at::Tensor once = loss(*first, 2.0), twice = loss(*first, 3.0);
  const ParamUnit moved = std::move(*first);
  first.reset();
  once.backward();
  twice.backward();
  REQUIRE(gradients.size() == 2);
  CHECK(lasts == std::vector<bool>{false, true});
  CHECK(moved.layout().view_of(gradients[0], 1).equal(at::full({3}, 2.0, at::kDouble)));
  CHECK(moved.layout().view_of(gradients[1], 1).equal(at::full({3}, 3.0, at::kDouble)));
  CHECK(moved.layout().view_of(gradients[1], 0).equal(at::zeros({2, 3}, at::kDouble)));
}

TEST_CASE("a gradient that nobody takes is an error") {
  const ParamUnit unit("unit", kSpecs, host_context());
  const at::Tensor loss = unit.gathered().materialize(at::kDouble)[0].leaf.sum();
  CHECK_THROWS_WITH(loss.backward(), Catch::Contains("no GradientSync takes its gradient"));
}

}  // namespace
}  // namespace ringside::engine
