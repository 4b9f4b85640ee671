// Guards: ring_steps run in varlen_groups (packing, masks, head groups, merging, gradients) that
// depart from the dense result, for every way to split; copies through the host that change a
// value. Oracle: dense fp64 softmax. The kernels are replaced by their CPU twins: what a GPU adds
// is in cuda_test.cpp.
#include "tests/sp/cuda_problem.h"
#include "tests/sp/cuda_twins.h"
#include "tests/support/catch.h"

using namespace ringside;
using sp::Placement;
using sp::RingImpl;
using sp::SegmentForest;
using test::Split;

namespace {

test::Target twin(at::ScalarType dtype) {
  return {sp::varlen_group_kernels(std::make_shared<test::CpuVarlenGroupOps>()), dtype};
}

std::vector<SegmentForest> packs() {
  return {SegmentForest::of_documents({37}), SegmentForest::of_documents({90, 3, 1, 1, 5, 2, 2, 7}),
          SegmentForest({{-1, 21},
                         {0, 9},
                         {1, 14},
                         {1, 6},
                         {1, 0},
                         {0, 30},
                         {5, 1},
                         {5, 12},
                         {-1, 8},
                         {8, 5},
                         {-1, 4}}),
          SegmentForest::of_documents({1})};  // leaves ranks without a row
}

std::vector<Split> splits() {
  return {{RingImpl::kP2p, Placement::kDocumentAware},
          {RingImpl::kP2p, Placement::kZigzag, 0, /*prune=*/false},
          {RingImpl::kAllGather, Placement::kZigzag, /*heads_k_stride=*/1},
          {RingImpl::kP2p, Placement::kZigzag, 0, /*prune=*/true, RingImpl::kAllGather}};
}

}  // namespace

TEST_CASE("ring_steps run in varlen_groups equal the dense oracle", "[parity]") {
  double worst = 0;
  for (const sp::HeadShape heads : {sp::HeadShape{6, 2, 8}, sp::HeadShape{5, 1, 8}}) {
    for (const SegmentForest& forest : packs()) {
      for (const int64_t window : {0, 1, 6, 40}) {
        test::Problem p = test::make_problem(forest, heads);
        p.window = window;
        const test::Solution expected = test::solve_densely(p);
        for (const sp::MeshShape shape : {sp::MeshShape{1, 1, 1}, sp::MeshShape{1, 3, 1},
                                          sp::MeshShape{1, 2, 2}, sp::MeshShape{1, 1, 4}}) {
          for (const Split& split : splits()) {
            const test::Solution got = test::solve_on_mesh_with(p, split, shape, twin(at::kDouble));
            const double difference = test::worst_difference(got, expected);
            INFO("window " << window << ", ring " << shape.ring << ", ulysses " << shape.ulysses
                           << ", heads " << heads.num_query_heads << ", tokens "
                           << forest.num_tokens());
            REQUIRE(difference < 1e-10);
            worst = std::max(worst, difference);
          }
        }
      }
    }
  }
  WARN("largest difference " << worst);
}

TEST_CASE("ring_steps with exact attention equal the dense oracle", "[parity]") {
  const test::Target exact{sp::varlen_group_kernels(std::make_shared<test::ExactOps>()),
                           at::kDouble};
  for (const SegmentForest& forest : packs()) {
    for (const int64_t window : {0, 6}) {
      test::Problem p = test::make_problem(forest, {6, 2, 8});
      p.window = window;
      const test::Solution expected = test::solve_densely(p);
      for (const sp::MeshShape shape : {sp::MeshShape{1, 1, 1}, sp::MeshShape{1, 2, 2}}) {
        for (const Split& split : splits()) {
          CHECK(test::worst_difference(test::solve_on_mesh_with(p, split, shape, exact), expected) <
                1e-10);
        }
      }
    }
  }
}

TEST_CASE("sinks and windows through varlen_groups, with autograd", "[parity]") {
  const auto kernels = sp::varlen_group_kernels(std::make_shared<test::CpuVarlenGroupOps>());
  for (const SegmentForest& forest : packs()) {
    for (const int64_t window : {0, 7}) {
      test::Problem p = test::make_problem(forest, {6, 2, 8});
      p.window = window;
      p.sinks = at::randn({6}, at::kDouble);
      const test::Solution expected = test::solve_densely(p);
      for (const sp::MeshShape shape :
           {sp::MeshShape{1, 1, 1}, sp::MeshShape{1, 2, 1}, sp::MeshShape{1, 1, 4}}) {
        for (const Split& split : splits()) {
          auto got = test::solve_on_mesh(p, split, shape, at::kDouble, kernels);
          // The executor's LSE is that of the keys alone.
          got.lse = at::logaddexp(got.lse, p.sinks.unsqueeze(0));
          CHECK(test::worst_difference(got, expected) < 1e-10);
        }
      }
    }
  }
  // In bf16 the one call's output is the result; the sinks still work in fp32.
  test::Problem p = test::rounded(test::make_problem(packs()[1], {6, 2, 8}), at::kBFloat16);
  p.sinks = at::randn({6}, at::kDouble);
  const auto errors = test::relative_errors(
      test::solve_on_mesh(p, {}, {1, 1, 1}, at::kBFloat16, kernels), test::solve_densely(p));
  const auto on_cpu = test::relative_errors(test::solve_on_mesh(p, {}, {1, 1, 1}, at::kBFloat16),
                                            test::solve_densely(p));
  for (std::size_t i = 0; i < errors.size(); ++i) {
    INFO("tensor " << i << " of out, dq, dk, dv");
    CHECK(errors[i] < 2 * on_cpu[i]);
  }
}

TEST_CASE("rounding by the varlen_group costs at most twice what the kernel alone costs",
          "[parity]") {
  const sp::HeadShape heads{8, 2, 64};
  const auto documents = test::rounded(
      test::make_problem(SegmentForest::of_documents({150, 40, 1, 90}), heads), at::kBFloat16);
  const auto once = test::relative_errors(
      test::solve_in_one_call(documents, test::CpuVarlenGroupOps(), at::kBFloat16),
      test::solve_densely(documents));
  double worst = 0;
  const SegmentForest group({{-1, 120}, {0, 30}, {0, 40}, {0, 25}, {0, 1}});
  for (const SegmentForest& forest : {documents.forest, group}) {
    const auto p = test::rounded(test::make_problem(forest, heads), at::kBFloat16);
    const auto expected = test::solve_densely(p);
    for (const sp::MeshShape shape : {sp::MeshShape{1, 1, 1}, sp::MeshShape{1, 2, 1},
                                      sp::MeshShape{1, 4, 1}, sp::MeshShape{1, 2, 2}}) {
      for (const Split& split : splits()) {
        const auto errors = test::relative_errors(
            test::solve_on_mesh_with(p, split, shape, twin(at::kBFloat16)), expected);
        for (std::size_t i = 0; i < errors.size(); ++i) {
          INFO("tensor " << i << ", ring " << shape.ring << ", ulysses " << shape.ulysses);
          CHECK(errors[i] < 2 * once[i]);
          worst = std::max(worst, errors[i] / once[i]);
        }
      }
    }
  }
  WARN("largest ratio " << worst);
}
