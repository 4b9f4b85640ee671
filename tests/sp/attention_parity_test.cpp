// Guards: any split of documents, shared prefixes, heads and ranks that changes an output, a
// log-sum-exp or a gradient; bytes sent that the plan does not predict; partial results in less
// than fp32. Oracle: dense fp64 softmax in one process, every document for itself.
#include <cstdio>
#include <random>

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

// Every factoring of 1, 2, 3, 4 and 8 ranks into ulysses x ring.
std::vector<sp::MeshShape> all_meshes() {
  std::vector<sp::MeshShape> meshes;
  for (const int64_t size : {1, 2, 3, 4, 8}) {
    for (int64_t ring = 1; ring <= size; ++ring) {
      if (size % ring == 0) {
        meshes.push_back({1, ring, size / ring});
      }
    }
  }
  return meshes;
}

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

struct Case {
  Problem problem;
  test::Solution expected;
};

Case make_case(Problem p) {
  auto expected = test::solve_densely(p);
  return {std::move(p), std::move(expected)};
}

// Solves every case by every split of a mesh, whose ranks keep their groups throughout; returns the
// worst difference.
double check_cases(const std::vector<Case>& cases, const sp::MeshShape& shape) {
  const auto splits = splits_of(shape);
  std::vector<std::vector<std::vector<test::RankSolution>>> found(  // [case][split][rank]
      cases.size(), {splits.size(), std::vector<test::RankSolution>(shape.world_size())});
  test::run_ranks_in_memory(shape, [&](const sp::Mesh& mesh, const sp::ProcessGroups& comms) {
    for (std::size_t c = 0; c < cases.size(); ++c) {
      for (std::size_t s = 0;
           s < splits.size() && shape.ulysses <= cases[c].problem.heads.num_query_heads; ++s) {
        found[c][s][mesh.rank()] =
            test::solve_on_rank(cases[c].problem, splits[s], mesh, comms, at::kDouble);
      }
    }
  });
  double worst = 0;
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const Problem& p = cases[c].problem;
    CAPTURE(shape.ring, shape.ulysses, p.heads.num_query_heads, p.heads.num_kv_heads, c);
    if (shape.ulysses > p.heads.num_query_heads) {
      const sp::SequenceLayout layout(p.forest, shape.ring, shape.ulysses);
      CHECK_THROWS_WITH(sp::plan_attention(layout, p.heads, 0), Catch::Contains("exceeds the"));
      continue;
    }
    for (std::size_t s = 0; s < splits.size(); ++s) {
      auto solution = test::join(p, found[c][s]);
      if (p.sinks.defined()) {  // the executor's LSE is that of the keys alone
        solution.lse = at::logaddexp(solution.lse, p.sinks.unsqueeze(0));
      }
      const double difference = test::worst_difference(solution, cases[c].expected);
      CAPTURE(s, p.window);
      CHECK(difference < 1e-10);
      worst = std::max(worst, difference);
    }
  }
  return worst;
}

}  // namespace

TEST_CASE(
    "outputs, LSE and gradients equal the dense oracle for every mesh, method, head count and pack",
    "[parity]") {
  std::vector<Case> cases;
  for (const auto& heads : kHeads) {
    for (const Pack& pack : all_packs()) {
      cases.push_back(make_case(make_problem(pack, heads)));
    }
  }
  double worst = 0;
  for (const auto& shape : all_meshes()) {
    worst = std::max(worst, check_cases(cases, shape));
  }
  std::printf("attention parity grid: worst difference %.2e\n", worst);
}

TEST_CASE("windows and sinks are honoured by every method", "[parity]") {
  std::vector<Case> cases;
  for (const Pack& pack : all_packs()) {
    for (const int64_t window : {1, 2, 7, 30, 1000}) {
      Problem p = make_problem(pack, {6, 2, 4});
      p.window = window;
      p.sinks = at::randn({6}, at::kDouble);
      cases.push_back(make_case(std::move(p)));
    }
  }
  for (const auto& shape : std::vector<sp::MeshShape>{{1, 1, 1}, {1, 3, 1}, {1, 2, 2}, {1, 1, 3}}) {
    check_cases(cases, shape);
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
