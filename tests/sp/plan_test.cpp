// Guards: a query-key pair that no rank or two ranks compute; a batch that writes a row twice; head groups the kernel
// cannot take; traffic that departs from the closed formulas in the even case. No tensor is involved.
#include <catch2/catch.hpp>

#include <map>
#include <random>
#include <set>

#include "sp/plan/attention_plan.h"

using namespace ringside::sp;

namespace {

std::vector<int64_t> share_to_packed(const SequenceLayout& layout, int64_t ring_rank) {
  std::vector<int64_t> packed;
  for (const TokenRun& run : layout.ring_share(ring_rank)) {
    for (int64_t p = run.positions.begin; p < run.positions.end; ++p) {
      packed.push_back(layout.cu_seqlens()[run.document] + p);
    }
  }
  return packed;
}

using Pair = std::pair<int64_t, int64_t>;

// All (query, key) packed pairs of a plan's blocks, failing on a repeated one.
void collect_pairs(const SequenceLayout& layout, const AttentionPlan& plan, std::set<Pair>& pairs) {
  const auto queries = share_to_packed(layout, plan.ring_rank);
  for (const RingStep& step : plan.steps) {
    const auto keys = share_to_packed(layout, step.kv_owner);
    for (const Block& block : step.blocks) {
      for (int64_t q = block.query.begin; q < block.query.end; ++q) {
        const int64_t end = block.kind == BlockKind::kCausal
                                ? block.key.begin + (q - block.query.begin) + 1
                                : block.key.end;
        for (int64_t k = block.key.begin; k < end; ++k) {
          REQUIRE(pairs.insert({queries[q], keys[k]}).second);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("the blocks of all ring ranks cover the causal mask of every document exactly once") {
  std::mt19937 rng(11);
  for (int trial = 0; trial < 100; ++trial) {
    const int64_t ring = std::uniform_int_distribution<int64_t>(1, 5)(rng);
    std::vector<int64_t> lengths(std::uniform_int_distribution<int64_t>(1, 5)(rng));
    for (int64_t& n : lengths) {
      n = std::uniform_int_distribution<int64_t>(0, 3 * 2 * ring + 1)(rng);
    }
    const SequenceLayout layout(lengths, ring, 1);
    std::set<Pair> pairs;
    for (int64_t r = 0; r < ring; ++r) {
      collect_pairs(layout, plan_attention(layout, {4, 2, 8}, r), pairs);
    }
    std::set<Pair> expected;
    for (std::size_t d = 0; d < lengths.size(); ++d) {
      for (int64_t q = 0; q < lengths[d]; ++q) {
        for (int64_t k = 0; k <= q; ++k) {
          expected.insert({layout.cu_seqlens()[d] + q, layout.cu_seqlens()[d] + k});
        }
      }
    }
    REQUIRE(pairs == expected);
  }
}

TEST_CASE("batches hold the blocks again, rows once per batch, initialising batches first") {
  const SequenceLayout layout({9, 9, 9, 2, 16, 16}, 3, 1);
  for (int64_t r = 0; r < 3; ++r) {
    const auto plan = plan_attention(layout, {4, 2, 8}, r);
    for (const RingStep& step : plan.steps) {
      std::size_t blocks = 0;
      bool merging = false;
      for (const BlockBatch& batch : step.batches) {
        std::set<int64_t> begins(batch.query_begins.begin(), batch.query_begins.end());
        CHECK(begins.size() == batch.query_begins.size());
        CHECK(batch.query_begins.size() == batch.key_begins.size());
        CHECK((batch.merge || !merging));
        merging = batch.merge;
        blocks += batch.query_begins.size();
      }
      CHECK(blocks == step.blocks.size());
    }
  }
}

TEST_CASE("equal documents share one kernel call") {
  const SequenceLayout layout(std::vector<int64_t>(32, 20), 1, 2);
  const auto plan = plan_attention(layout, {4, 2, 8}, 0);
  REQUIRE(plan.steps.size() == 1);
  REQUIRE(plan.steps[0].batches.size() == 1);
  CHECK(plan.steps[0].batches[0].query_begins.size() == 32);
}

TEST_CASE("any head split gives every rank uniform groups that cover its heads") {
  const std::vector<std::tuple<int64_t, int64_t, int64_t>> cases{
      {28, 4, 8}, {40, 8, 16}, {6, 2, 4}, {14, 2, 4}, {5, 1, 3}, {8, 8, 3}, {8, 2, 8}, {7, 1, 2}};
  for (const auto& [hq, hk, ulysses] : cases) {
    const SequenceLayout layout({64}, 1, ulysses);
    int64_t next_head = 0;
    for (int64_t u = 0; u < ulysses; ++u) {
      const auto plan = plan_attention(layout, {hq, hk, 8}, u);
      CHECK(plan.query_heads_of[u].begin == next_head);
      next_head = plan.query_heads_of[u].end;
      int64_t q = 0;
      int64_t kv = 0;
      for (const HeadGroup& group : plan.head_groups) {
        CHECK(group.query_heads.begin == q);
        CHECK(group.kv_heads.begin == kv);
        CHECK(group.query_heads.size() % group.kv_heads.size() == 0);
        const int64_t per_kv = group.query_heads.size() / group.kv_heads.size();
        for (int64_t h = group.query_heads.begin; h < group.query_heads.end; ++h) {
          const int64_t global_kv = (plan.query_heads_of[u].begin + h) / (hq / hk);
          const int64_t local_kv = group.kv_heads.begin + (h - group.query_heads.begin) / per_kv;
          CHECK(plan.kv_heads_of[u].begin + local_kv == global_kv);
        }
        q = group.query_heads.end;
        kv = group.kv_heads.end;
      }
      CHECK(q == plan.local_query_heads());
      CHECK(kv == plan.local_kv_heads());
    }
    CHECK(next_head == hq);
  }
}

TEST_CASE("even traffic equals the closed formulas") {
  const int64_t S = 1024, hq = 32, hk = 8, d = 16;
  SECTION("ulysses, P <= Hk: (P-1)/P^2 S D (2Hq + 2Hk)") {
    const int64_t P = 4;
    const auto t = plan_attention(SequenceLayout({S}, 1, P), {hq, hk, d}, 1).traffic;
    CHECK(t.ulysses_query + t.ulysses_kv + t.ulysses_output == (P - 1) * S * d * (2 * hq + 2 * hk) / (P * P));
    CHECK(t.ulysses_kv_grad == t.ulysses_kv);
    CHECK(t.ring_kv == 0);
  }
  SECTION("ulysses, P > Hk: KV counts P heads") {
    const int64_t P = 16;
    const auto t = plan_attention(SequenceLayout({S}, 1, P), {hq, hk, d}, 3).traffic;
    CHECK(t.ulysses_query + t.ulysses_kv + t.ulysses_output == (P - 1) * S * d * (2 * hq + 2 * P) / (P * P));
  }
  SECTION("ring: (P-1)/P 2 S Hk D, the gradient in as many hops") {
    const int64_t P = 8;
    const auto t = plan_attention(SequenceLayout({S}, P, 1), {hq, hk, d}, 5).traffic;
    CHECK(t.ring_kv == (P - 1) * 2 * S * hk * d / P);
    CHECK(t.ring_kv_grad == t.ring_kv);
    CHECK(t.ulysses_query == 0);
  }
}

TEST_CASE("zigzag balances attended pairs") {
  const SequenceLayout layout({1024}, 4, 1);
  const int64_t first = plan_attention(layout, {4, 2, 8}, 0).attended_pairs;
  for (int64_t r = 1; r < 4; ++r) {
    CHECK(plan_attention(layout, {4, 2, 8}, r).attended_pairs == first);
  }
}

TEST_CASE("impossible head splits are refused with both numbers") {
  const SequenceLayout layout({64}, 1, 4);
  CHECK_THROWS_WITH(plan_attention(layout, {3, 1, 8}, 0), Catch::Contains("ulysses size 4 exceeds the 3"));
  CHECK_THROWS_WITH(plan_attention(layout, {6, 4, 8}, 0), Catch::Contains("got 6 and 4"));
}
