// Guards: more kernel calls than a micro-batch needs, index tables that every layer makes again.
#include <cstdio>

#include "tests/sp/attention_problem.h"
#include "tests/sp/work_counters.h"
#include "tests/support/catch.h"

using namespace ringside;
using sp::SegmentForest;

namespace {

struct Pack {
  const char* name;
  SegmentForest forest;
  bool shared = true;  // documents have ancestors in common
};

std::vector<Pack> work_packs() {
  std::vector<sp::Segment> group{{-1, 24}};
  for (int64_t c = 0; c < 8; ++c) {
    group.push_back({0, 20 + c});
  }
  return {{"plain documents", SegmentForest::of_documents({40, 3, 1, 17, 9}), /*shared=*/false},
          {"8 completions of a prompt", SegmentForest(group)},
          {"nested forest", SegmentForest({{-1, 21},
                                           {0, 9},
                                           {1, 14},
                                           {1, 6},
                                           {1, 0},
                                           {0, 30},
                                           {5, 1},
                                           {5, 12},
                                           {-1, 8},
                                           {8, 5},
                                           {-1, 4}})}};
}

test::OpCounts expected(test::OpCounts counts) {
  std::erase_if(counts, [](const auto& count) { return count.second == 0; });
  return counts;
}

void print(const char* name, const char* pass, const test::OpCounts& counts) {
  std::printf("%s, %s:", name, pass);
  for (const auto& [op, count] : counts) {
    std::printf(" %s %ld", op.c_str(), static_cast<long>(count));
  }
  std::printf("; %ld in all\n", static_cast<long>(test::total(counts)));
}

}  // namespace

TEST_CASE("one ring rank runs a micro-batch in one varlen call a pass") {
  for (const Pack& pack : work_packs()) {
    INFO(pack.name);
    const test::Problem p = test::make_problem(pack.forest, {4, 2, 8});
    const auto plan = std::make_shared<const sp::AttentionPlan>(
        sp::plan_attention(sp::SequenceLayout(p.forest, 1, 1), p.heads, 0));
    const auto ops = std::make_shared<test::CountingOps>();
    const auto prepared = sp::varlen_group_kernels(ops)->prepare(plan, p.q.options());
    const auto alone = sp::make_single_rank_communicator();
    const at::Tensor kv = at::cat({p.k, p.v}, 1);
    const auto result = sp::run_forward(p.q, kv, *prepared, *alone, p.scale);
    const test::OpCounts forward = ops->take();
    print(pack.name, "forward", forward);
    sp::run_backward({p.dout, p.q, result.out, result.lse}, kv, *prepared, *alone, p.scale);
    const test::OpCounts backward = ops->take();
    print(pack.name, "backward", backward);
    const int64_t gathered = pack.shared ? 1 : 0;  // the keys
    CHECK(forward == expected({{"attend", 1}, {"gather_rows", gathered}}));
    CHECK(
        backward ==
        expected({{"attend_backward", 1}, {"gather_rows", gathered}, {"add_rows", 2 * gathered}}));
  }
}

TEST_CASE("a layer makes no index table") {
  test::Problem p = test::make_problem(work_packs()[2].forest, {4, 2, 8});
  for (const auto& kernels :
       {sp::cpu_kernels(), sp::varlen_group_kernels(std::make_shared<test::IdleOps>())}) {
    for (const int64_t window : {0, 5}) {
      INFO("window " << window);
      p.window = window;
      test::run_ranks({1, 2, 1}, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
        const test::Split split{sp::RingImpl::kAllGather, sp::Placement::kZigzag};
        const auto [plan, places] = test::plan_on_rank(p, split, mesh);
        const at::Tensor index = at::tensor(places.packed, at::kLong);
        const at::Tensor q = p.q.index_select(0, index), dout = p.dout.index_select(0, index),
                         kv = at::cat({p.k, p.v}, 1).index_select(0, index);
        sp::Communicator& ring = *comms.tensors(sp::axes::kRing);
        const auto prepared = kernels->prepare(plan, q.options());
        const test::IntegerTensorWatch watch;
        const auto result = sp::run_forward(q, kv, *prepared, ring, p.scale);
        sp::run_backward({dout, q, result.out, result.lse}, kv, *prepared, ring, p.scale);
        TORCH_CHECK(watch.count() == 0, "a layer made ", watch.count(), " integer tensors");
      });
    }
  }
}

TEST_CASE("the tables of a plan go to the device in two copies") {
  const auto kernels = sp::varlen_group_kernels(std::make_shared<test::IdleOps>());
  const sp::SequenceLayout layout(work_packs()[2].forest, 2, 1, sp::Placement::kZigzag);
  for (const int64_t window : {0, 5}) {
    const auto plan = std::make_shared<const sp::AttentionPlan>(
        sp::plan_attention(layout, {4, 2, 8}, 0, {sp::RingImpl::kAllGather, 0, window, true}));
    const test::IntegerTensorWatch watch;
    kernels->prepare(plan, at::kDouble);
    // Each copy is a tensor on the host and one on the device.
    CHECK(watch.count() == 4);
  }
}
