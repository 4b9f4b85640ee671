// Guards: a factoring that the heads do not allow, a choice that ignores bytes or overlap.
#include "sp/plan/method_choice.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "sp/plan/device_speeds.h"

using namespace ringside::sp;

namespace {

MethodQuery query(HeadShape heads, std::vector<int64_t> lengths, int64_t ranks) {
  MethodQuery q;
  q.heads = heads;
  q.document_lengths = std::move(lengths);
  q.num_ranks = ranks;
  q.speed = rank_speed(*find_device("H100"), 2);
  q.speed.ranks_per_node = 0;
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
        Approx(3.5 * 4 * pairs / 8 * 32 * 128 / find_device("H100")->attention_flops_per_s)
            .epsilon(1e-3));
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

TEST_CASE("other layers of a model may allow fewer Ulysses ranks than its query heads") {
  MethodQuery few_heads = query({8, 8, 64}, {4096}, 8);
  few_heads.most_ulysses = 3;
  const auto costs = rank_methods(few_heads);
  REQUIRE(costs.size() == 2);
  CHECK(std::max(costs[0].ulysses, costs[1].ulysses) == 2);
}

TEST_CASE("impossible queries are refused") {
  CHECK_THROWS_WITH(rank_methods(query({8, 8, 64}, {128}, 0)), Catch::Contains("0 ranks"));
  CHECK_THROWS_WITH(rank_methods(query({6, 4, 64}, {128}, 2)), Catch::Contains("6 and 4"));
}

TEST_CASE("a gathered backward is exposed, and sends less than a ring that passes rows on") {
  MethodQuery q = query({32, 4, 128}, {131072}, 8);
  const auto p2p = of(rank_methods(q), 1);
  q.options.ring_backward = RingImpl::kAllGather;
  const auto gathered = of(rank_methods(q), 1);
  CHECK(gathered.bytes < p2p.bytes);
  CHECK(gathered.seconds > p2p.seconds);  // 16k tokens a rank hide the ring's transfers
}

TEST_CASE("an axis that crosses nodes has their bandwidth, and the ring crosses first") {
  MethodQuery q = query({32, 8, 128}, {131072}, 16);
  q.speed.ranks_per_node = 8;
  q.speed.transfer_seconds = 0;
  const auto across = rank_methods(q);
  CHECK(of(across, 16).ulysses_crosses_nodes);
  CHECK_FALSE(of(across, 16).ring_crosses_nodes);  // there is no ring
  CHECK_FALSE(of(across, 8).ulysses_crosses_nodes);
  CHECK(of(across, 8).ring_crosses_nodes);
  q.speed.ranks_per_node = 0;
  const auto inside = rank_methods(q);
  CHECK_FALSE(of(inside, 8).ring_crosses_nodes);
  CHECK(of(across, 8).ring_seconds > 7 * of(inside, 8).ring_seconds);
  CHECK(of(across, 8).ulysses_seconds == of(inside, 8).ulysses_seconds);
  CHECK(of(across, 16).ulysses_seconds > 7 * of(inside, 16).ulysses_seconds);
  CHECK(of(across, 8).bytes == of(inside, 8).bytes);
}

TEST_CASE("short sequences pay for the launch of their transfers") {
  MethodQuery q = query({32, 8, 128}, {64}, 8);
  const auto costs = rank_methods(q);
  CHECK(of(costs, 8).ulysses_seconds > 6 * q.speed.transfer_seconds);
  CHECK(of(costs, 8).ulysses_seconds < 7 * q.speed.transfer_seconds);
  CHECK(of(costs, 1).ring_seconds > 3 * 7 * q.speed.transfer_seconds);
  CHECK(costs.front().ulysses == 8);
}

TEST_CASE("devices are found by what drivers call them") {
  const auto name = [](const char* full) {
    const DeviceSpeeds* found = find_device(full);
    return found == nullptr ? std::string() : found->name;
  };
  CHECK(name("NVIDIA H100 80GB HBM3") == "H100");
  CHECK(name("NVIDIA H200") == "H200");
  CHECK(name("NVIDIA A100-SXM4-80GB") == "A100");
  CHECK(name("NVIDIA GeForce RTX 4090") == "RTX 4090");
  CHECK(name("NVIDIA L40S") == "L40S");
  CHECK(name("b200") == "B200");
  CHECK(name("cpu") == "CPU");
  CHECK(name("Tesla T4").empty());
}

TEST_CASE("wide dtypes are slower, and the choice of a method follows the device") {
  const DeviceSpeeds& h100 = *find_device("H100");
  CHECK(rank_speed(h100, 4).flops_per_s < rank_speed(h100, 2).flops_per_s / 5);
  CHECK(rank_speed(h100, 8).flops_per_s == rank_speed(h100, 4).flops_per_s / 2);
  CHECK(rank_speed(*find_device("CPU"), 4).flops_per_s ==
        find_device("CPU")->attention_flops_per_s);
  // The same 8 ranks and documents: loopback and slow cores hide the ring's transfers, a fast
  // device does not.
  MethodQuery q = query({32, 32, 128}, {4096}, 8);
  CHECK(rank_methods(q).front().ulysses > 1);
  q.speed = rank_speed(*find_device("CPU"), 2);
  CHECK(rank_methods(q).front().ring == 8);
}
