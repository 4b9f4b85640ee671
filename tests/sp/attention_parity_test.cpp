// Guards: any split of documents, shared prefixes, heads and ranks that changes an output, a
// log-sum-exp or a gradient; bytes sent that the plan does not predict; partial results in less
// than fp32. Oracle: dense fp64 softmax in one process, every document for itself.
#include <cstdio>
#include <random>
#include <string>

#include "tests/sp/attention_problem.h"
#include "tests/support/catch.h"

using namespace ringside;
using sp::Placement;
using sp::RingImpl;
using sp::SegmentForest;
using test::Problem;
using test::Split;

namespace {

struct Pack {
  const char* name;
  SegmentForest forest;
  bool mask_even = false;  // no gradient from every other document
};

std::vector<Pack> all_packs() {
  std::mt19937 rng(1);
  std::vector<int64_t> ragged(7);
  for (int64_t& n : ragged) {
    n = std::uniform_int_distribution<int64_t>(1, 3 * 16 + 1)(rng);
  }
  std::vector<sp::Segment> groups;  // three prompts with five completions each
  for (int64_t prompt : {17, 40, 3}) {
    const auto parent = static_cast<int64_t>(groups.size());
    groups.push_back({-1, prompt});
    for (int64_t c = 0; c < 5; ++c) {
      groups.push_back({parent, std::uniform_int_distribution<int64_t>(1, 20)(rng)});
    }
  }
  return {
      {"one document", SegmentForest::of_documents({37})},
      {"ragged", SegmentForest::of_documents(ragged)},
      {"one long, many short", SegmentForest::of_documents({90, 3, 1, 1, 5, 2, 2, 7})},
      {"one token", SegmentForest::of_documents({1})},
      {"groups", SegmentForest(groups)},
      {"three levels", SegmentForest({{-1, 21},
                                      {0, 9},
                                      {1, 14},
                                      {1, 6},
                                      {1, 0},
                                      {0, 30},
                                      {5, 1},
                                      {5, 12},
                                      {-1, 8},
                                      {8, 5},
                                      {9, 13},
                                      {9, 2},
                                      {-1, 4}})},
      // document-aware placement puts documents 0, 2, 4 and 6 on ranks of their own at 2, 4 and 8
      {"ranks without a loss token", SegmentForest::of_documents(std::vector<int64_t>(8, 16)),
       /*mask_even=*/true}};
}

Problem make_problem(const Pack& pack, const sp::HeadShape& heads) {
  Problem p = test::make_problem(pack.forest, heads);
  for (int64_t s = 0; pack.mask_even && s < pack.forest.num_segments(); s += 2) {
    p.dout.narrow(0, pack.forest.packed(s).begin, pack.forest.length(s)).zero_();
  }
  return p;
}

const std::vector<sp::HeadShape> kHeads{{8, 8, 4}, {8, 2, 4}, {6, 2, 4}, {5, 1, 4}, {28, 4, 4}};

std::vector<Split> splits_of(const sp::MeshShape& shape) {
  std::vector<Split> splits{
      {RingImpl::kP2p, Placement::kDocumentAware},
      {RingImpl::kAllGather, Placement::kDocumentAware, /*heads_k_stride=*/1}};
  if (shape.ring > 1) {
    splits.push_back({RingImpl::kP2p, Placement::kZigzag});
    splits.push_back({RingImpl::kAllGather, Placement::kZigzag});
    splits.push_back({RingImpl::kP2p, Placement::kContiguous, 0, /*prune=*/false});
    splits.push_back({RingImpl::kAllGather, Placement::kContiguous, 3, /*prune=*/false});
    for (const Placement placement : {Placement::kDocumentAware, Placement::kZigzag}) {
      splits.push_back({RingImpl::kP2p, placement, 0, /*prune=*/true, RingImpl::kAllGather});
    }
    splits.push_back(
        {RingImpl::kP2p, Placement::kContiguous, 0, /*prune=*/false, RingImpl::kAllGather});
  }
  return splits;
}

std::string name_of(const Split& split) {
  const auto impl = [](RingImpl ring) { return ring == RingImpl::kP2p ? "p2p" : "all-gather"; };
  const char* placement = split.placement == Placement::kZigzag       ? "zigzag"
                          : split.placement == Placement::kContiguous ? "contiguous"
                                                                      : "document-aware";
  return std::string(impl(split.ring_impl)) + ", backward " + impl(split.ring_backward) + ", " +
         placement + ", stride " + std::to_string(split.heads_k_stride) +
         (split.prune ? "" : ", not pruned");
}

// Solves a problem by every split of a mesh, whose ranks keep their groups throughout.
void check_problem(const Problem& p, const sp::MeshShape& shape) {
  if (shape.ulysses > p.heads.num_query_heads) {
    const sp::SequenceLayout layout(p.forest, shape.ring, shape.ulysses);
    CHECK_THROWS_WITH(sp::plan_attention(layout, p.heads, 0), Catch::Contains("exceeds the"));
    return;
  }
  const auto splits = splits_of(shape);
  std::vector<std::vector<test::RankSolution>> found(  // [split][rank]
      splits.size(), std::vector<test::RankSolution>(shape.world_size()));
  test::run_ranks_in_memory(shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    for (std::size_t s = 0; s < splits.size(); ++s) {
      found[s][mesh.rank()] = test::solve_on_rank(p, splits[s], mesh, comms, at::kDouble);
    }
  });
  const test::Solution expected = test::solve_densely(p);
  for (std::size_t s = 0; s < splits.size(); ++s) {
    auto solution = test::join(p, found[s]);
    if (p.sinks.defined()) {  // the executor's LSE is that of the keys alone
      solution.lse = at::logaddexp(solution.lse, p.sinks.unsqueeze(0));
    }
    CAPTURE(name_of(splits[s]));
    CHECK(test::worst_difference(solution, expected) < 1e-10);
  }
}

}  // namespace

// One case for each factoring of 1, 2, 3, 4 and 8 ranks. A section is named by heads and pack, so
// that `test_sp_attention "* mesh - 2, 4" -c "28/4 heads, groups"` runs one cell again.
TEMPLATE_TEST_CASE_SIG("outputs, LSE and gradients equal the dense oracle on a ring x ulysses mesh",
                       "[parity]", ((int Ring, int Ulysses), Ring, Ulysses), (1, 1), (1, 2), (2, 1),
                       (1, 3), (3, 1), (1, 4), (2, 2), (4, 1), (1, 8), (2, 4), (4, 2), (8, 1)) {
  for (const auto& heads : kHeads) {
    for (const Pack& pack : all_packs()) {
      DYNAMIC_SECTION(heads.num_query_heads << "/" << heads.num_kv_heads << " heads, "
                                            << pack.name) {
        check_problem(make_problem(pack, heads), {1, Ring, Ulysses});
      }
    }
  }
}

TEMPLATE_TEST_CASE_SIG("windows and sinks equal the dense oracle on a ring x ulysses mesh",
                       "[parity]", ((int Ring, int Ulysses), Ring, Ulysses), (1, 1), (3, 1), (2, 2),
                       (1, 3)) {
  for (const Pack& pack : all_packs()) {
    for (const int64_t window : {1, 2, 7, 30, 1000}) {
      DYNAMIC_SECTION("window " << window << ", " << pack.name) {
        Problem p = make_problem(pack, {6, 2, 4});
        p.window = window;
        p.sinks = at::randn({6}, at::kDouble);
        check_problem(p, {1, Ring, Ulysses});
      }
    }
  }
}

TEST_CASE("heads of tensor ranks together equal the dense oracle, with windows and sinks",
          "[parity]") {
  for (const auto& [heads, tensor] : std::vector<std::pair<sp::HeadShape, int64_t>>{
           {{12, 4, 4}, 3}, {{8, 2, 4}, 3}, {{8, 8, 4}, 4}, {{7, 1, 4}, 2}}) {
    Problem p = make_problem(all_packs().front(), heads);
    p.window = 7;
    p.sinks = at::randn({heads.num_query_heads}, at::kDouble);
    const test::Solution expected = test::solve_densely(p);
    test::Solution sum{{}, {}, {}, at::zeros_like(p.k), at::zeros_like(p.v), {}};
    std::vector<at::Tensor> out, dq, dsinks;
    for (int64_t t = 0; t < tensor; ++t) {
      const Problem part = test::part_of(p, tensor, t);
      const test::Solution own =
          test::solve_on_mesh(part, {RingImpl::kP2p, Placement::kZigzag}, {1, 2, 2}, at::kDouble);
      out.push_back(own.out);
      dq.push_back(own.dq);
      dsinks.push_back(own.dsinks);
      const sp::Range keys = part.heads.kv_heads();
      sum.dk.narrow(1, keys.begin, keys.size()).add_(own.dk);
      sum.dv.narrow(1, keys.begin, keys.size()).add_(own.dv);
    }
    CAPTURE(heads.num_query_heads, heads.num_kv_heads, tensor);
    CHECK(test::max_abs_diff(at::cat(out, 1), expected.out) < 1e-10);
    CHECK(test::max_abs_diff(at::cat(dq, 1), expected.dq) < 1e-10);
    CHECK(test::max_abs_diff(sum.dk, expected.dk) < 1e-10);
    CHECK(test::max_abs_diff(sum.dv, expected.dv) < 1e-10);
    CHECK(test::max_abs_diff(at::cat(dsinks), expected.dsinks) < 1e-10);
  }
}

TEST_CASE("bf16 error stays within twice the single process and does not grow with the degree") {
  Problem p =
      test::make_problem(SegmentForest({{-1, 120}, {0, 181}, {0, 64}, {-1, 44}}), {8, 2, 16});
  p.scale = 0.25;
  for (at::Tensor* x : {&p.q, &p.k, &p.v, &p.dout}) {  // the oracle sees the same bf16 inputs
    *x = x->to(at::kBFloat16).to(at::kDouble);
  }
  const auto expected = test::solve_densely(p);
  const auto error = [&](const Split& split, int64_t ring, int64_t ulysses) {
    return test::worst_difference(test::solve_on_mesh(p, split, {1, ring, ulysses}, at::kBFloat16),
                                  expected);
  };
  const double single = error({}, 1, 1);
  std::printf("bf16 attention error: 1 rank %.4f\n", single);
  for (const int64_t size : {2, 4, 8}) {
    const double p2p = error({RingImpl::kP2p, Placement::kZigzag}, size, 1);
    const double gather = error({RingImpl::kAllGather, Placement::kZigzag}, size, 1);
    const double ulysses = error({}, 1, size);
    std::printf("bf16 attention error: P = %ld: p2p %.4f, all-gather %.4f, ulysses %.4f\n",
                static_cast<long>(size), p2p, gather, ulysses);
    CHECK(std::max({p2p, gather, ulysses}) <= 2 * single);
  }
}
