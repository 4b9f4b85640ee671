// Guards: a factoring that the heads do not allow, a choice that ignores bytes or overlap.
#include "sp/plan/method_choice.h"

#include <algorithm>
#include <catch2/catch.hpp>

using namespace ringside::sp;

namespace {

MethodQuery query(HeadShape heads, std::vector<int64_t> lengths, int64_t ranks) {
  MethodQuery q;
  q.heads = heads;
  q.document_lengths = std::move(lengths);
  q.num_ranks = ranks;
  return q;
}

const MethodCost& of(const std::vector<MethodCost>& costs, int64_t ulysses) {
  for (const MethodCost& cost : costs) {
    if (cost.ulysses == ulysses) {
      return cost;
    }
  }
  throw std::invalid_argument("no such factoring");
}

}  // namespace

TEST_CASE("every factoring that the heads allow is ranked, fastest first") {
  const auto costs = rank_methods(query({6, 2, 128}, {4096}, 8));
  REQUIRE(costs.size() == 3);  // ulysses 8 exceeds the heads
  CHECK(std::is_sorted(costs.begin(), costs.end(), [](const MethodCost& a, const MethodCost& b) {
    return a.seconds < b.seconds;
  }));
  for (const MethodCost& cost : costs) {
    CHECK(cost.ulysses * cost.ring == 8);
  }
}

TEST_CASE("bytes of a layer are those of the closed formulas") {
  // 131072 tokens, 32/8 heads of 128, bf16, 8 ranks: 280 + 280 MiB by Ulysses; the ring's formulas
  // are upper bounds, for plans send only what is needed.
  const auto costs = rank_methods(query({32, 8, 128}, {131072}, 8));
  CHECK(of(costs, 8).bytes == int64_t{560} << 20);
  CHECK(of(costs, 1).bytes < int64_t{448 + 1344} << 20);
  CHECK(of(costs, 1).bytes > int64_t{3 * (448 + 1344) / 4} << 20);
}

TEST_CASE(
    "a ring that hides behind compute wins over exposed all-to-alls; short shares turn that "
    "round") {
  // GQA 32/4 at 8 ranks: the ring sends less than Ulysses, and 16k tokens a rank hide it.
  const auto long_shares = rank_methods(query({32, 4, 128}, {131072}, 8));
  CHECK(long_shares.front().ring == 8);
  const double pairs =
      131072.0 * 131073.0 / 2;  // nothing but compute is left: forward and 2.5 x that backward
  CHECK(long_shares.front().seconds ==
        Approx(3.5 * 4 * pairs / 8 * 32 * 128 / kGpuNvlink.flops_per_s).epsilon(1e-3));
  // 32 tokens a rank hide nothing, and 32/32 heads make the ring's volume many times that of
  // Ulysses.
  const auto short_shares = rank_methods(query({32, 32, 128}, {256}, 8));
  CHECK(short_shares.front().ulysses == 8);
}

TEST_CASE("documents that fit on a rank each cost a ring nothing") {
  const auto costs = rank_methods(query({8, 8, 64}, std::vector<int64_t>(64, 128), 4));
  CHECK(costs.front().ring == 4);
  CHECK(costs.front().bytes == 0);
}

TEST_CASE("impossible queries are refused") {
  CHECK_THROWS_WITH(rank_methods(query({8, 8, 64}, {128}, 0)), Catch::Contains("0 ranks"));
  CHECK_THROWS_WITH(rank_methods(query({6, 4, 64}, {128}, 2)), Catch::Contains("6 and 4"));
}
