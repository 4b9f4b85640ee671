// Guards: a query-key pair that no rank or two ranks compute; a batch that writes a row twice; keys
// or gradients taken from wrong rows of a buffer; head groups the kernel cannot take; traffic that
// departs from the closed formulas in the even case. No tensor is involved.
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "sp/layout/range_set.h"
#include "sp/plan/attention_plan.h"

using namespace ringside::sp;

namespace {

std::vector<int64_t> packed_of_share(const SequenceLayout& layout, int64_t ring_rank) {
  std::vector<int64_t> packed;
  for (const TokenRun& run : layout.ring_share(ring_rank)) {
    for (int64_t i = layout.packed(run).begin; i < layout.packed(run).end; ++i) {
      packed.push_back(i);
    }
  }
  return packed;
}

std::vector<int64_t> take(const std::vector<int64_t>& values, const std::vector<Range>& ranges) {
  std::vector<int64_t> taken;
  for (const Range& range : ranges) {
    taken.insert(taken.end(), values.begin() + range.begin, values.begin() + range.end);
  }
  return taken;
}

// The packed tokens in each step's KV buffer of every rank, moved as the plans say.
using Buffers = std::vector<std::vector<std::vector<int64_t>>>;  // [rank][step][row]

Buffers move_p2p(const SequenceLayout& layout, const std::vector<AttentionPlan>& plans) {
  const auto size = static_cast<int64_t>(plans.size());
  Buffers buffers(size);
  for (int64_t r = 0; r < size; ++r) {
    buffers[r].push_back(packed_of_share(layout, r));
  }
  for (int64_t t = 1; t < size; ++t) {
    for (int64_t r = 0; r < size; ++r) {
      const int64_t from = (r - 1 + size) % size;
      buffers[r].push_back(take(buffers[from][t - 1], plans[from].steps[t - 1].pass_on));
    }
  }
  return buffers;
}

Buffers move_all_gather(const SequenceLayout& layout, const std::vector<AttentionPlan>& plans) {
  Buffers buffers;
  for (std::size_t r = 0; r < plans.size(); ++r) {
    std::vector<int64_t> received;
    for (std::size_t from = 0; from < plans.size(); ++from) {
      const auto piece = take(packed_of_share(layout, from), plans[from].gather.send_rows[r]);
      REQUIRE(static_cast<int64_t>(piece.size()) == plans[r].gather.recv_rows[from]);
      received.insert(received.end(), piece.begin(), piece.end());
    }
    std::vector<int64_t> buffer;
    for (const int64_t source : plans[r].gather.source) {
      buffer.push_back(received[source]);
    }
    buffers.push_back({buffer});
  }
  return buffers;
}

using Pair = std::pair<int64_t, int64_t>;

// All (query, key) packed pairs of a step's blocks, failing on a repeated one.
void collect_pairs(const RingStep& step, int64_t window, const std::vector<int64_t>& queries,
                   const std::vector<int64_t>& keys, std::set<Pair>& pairs) {
  REQUIRE(static_cast<int64_t>(keys.size()) == step.kv_rows);
  for (const Block& block : step.blocks) {
    REQUIRE((block.key.begin >= 0 && block.key.end <= step.kv_rows));
    REQUIRE(block.key_gradient + block.key.size() <= step.gradient_rows);
    for (int64_t i = 0; i < block.query.size(); ++i) {
      for (int64_t j = 0; j < block.key.size(); ++j) {
        const int64_t distance = i + block.offset - j;
        const bool seen =
            block.kind == BlockKind::kFull || (block.kind == BlockKind::kCausal && j <= i) ||
            (block.kind == BlockKind::kWindowed && distance >= 0 && distance < window);
        if (seen) {
          REQUIRE(pairs.insert({queries[block.query.begin + i], keys[block.key.begin + j]}).second);
        }
      }
    }
  }
}

std::set<Pair> expected_pairs(const SegmentForest& forest, int64_t window) {
  std::set<Pair> pairs;
  for (int64_t s = 0; s < forest.num_segments(); ++s) {
    for (int64_t q = forest.packed(s).begin; q < forest.packed(s).end; ++q) {
      const int64_t position = forest.first_position(s) + q - forest.packed(s).begin;
      for (int64_t t = s; t != -1; t = forest.parent(t)) {
        for (int64_t k = forest.packed(t).begin; k < forest.packed(t).end; ++k) {
          const int64_t distance =
              position - (forest.first_position(t) + k - forest.packed(t).begin);
          if (distance >= 0 && (window == 0 || distance < window)) {
            pairs.insert({q, k});
          }
        }
      }
    }
  }
  return pairs;
}

SegmentForest random_forest(std::mt19937& rng, int64_t max_length) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  std::vector<Segment> segments;
  std::vector<int64_t> path;
  for (int64_t n = draw(1, 8); n > 0; --n) {
    path.resize(draw(0, static_cast<int64_t>(path.size())));
    segments.push_back({path.empty() ? -1 : path.back(), draw(0, max_length)});
    path.push_back(static_cast<int64_t>(segments.size()) - 1);
  }
  return SegmentForest(segments);
}

std::vector<AttentionPlan> ring_plans(const SequenceLayout& layout, const PlanOptions& options) {
  std::vector<AttentionPlan> plans;
  for (int64_t r = 0; r < layout.ring_size(); ++r) {
    plans.push_back(plan_attention(layout, {4, 2, 8}, r, options));
  }
  return plans;
}

}  // namespace

TEST_CASE(
    "the blocks of all ranks cover the mask of every forest exactly once, on rows that were really "
    "sent") {
  std::mt19937 rng(11);
  for (int trial = 0; trial < 240; ++trial) {
    const int64_t ring = std::uniform_int_distribution<int64_t>(1, 5)(rng);
    const SequenceLayout layout(random_forest(rng, 3 * 2 * ring + 1), ring, 1,
                                static_cast<Placement>(trial % 3));
    for (const RingImpl impl : {RingImpl::kP2p, RingImpl::kAllGather}) {
      const PlanOptions options{impl, 0, trial % 4 == 3 ? trial % 13 + 1 : 0, trial % 2 == 0};
      const auto plans = ring_plans(layout, options);
      const Buffers buffers =
          impl == RingImpl::kP2p ? move_p2p(layout, plans) : move_all_gather(layout, plans);
      std::set<Pair> pairs;
      int64_t counted = 0;
      for (int64_t r = 0; r < ring; ++r) {
        for (std::size_t step = 0; step < plans[r].steps.size(); ++step) {
          collect_pairs(plans[r].steps[step], options.window, packed_of_share(layout, r),
                        buffers[r][step], pairs);
        }
        counted += plans[r].attended_pairs;
      }
      REQUIRE(pairs == expected_pairs(layout.forest(), options.window));
      REQUIRE(counted == static_cast<int64_t>(pairs.size()));
    }
  }
}

TEST_CASE("gradients that travel the p2p ring come home to the rows they belong to") {
  std::mt19937 rng(12);
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t ring = std::uniform_int_distribution<int64_t>(2, 5)(rng);
    const SequenceLayout layout(random_forest(rng, 3 * 2 * ring + 1), ring, 1,
                                static_cast<Placement>(trial % 3));
    const auto plans = ring_plans(layout, {RingImpl::kP2p, 0, 0, trial % 2 == 0});
    const Buffers kv = move_p2p(layout, plans);
    for (int64_t owner = 0; owner < ring; ++owner) {
      std::vector<int64_t> travelling;  // packed tokens of the gradient rows
      for (int64_t t = 1; t < ring; ++t) {
        const RingStep& step = plans[(owner + t) % ring].steps[t];
        REQUIRE(step.kv_owner == owner);
        std::vector<int64_t> rows(step.gradient_rows, -1);
        std::size_t next = 0;
        for (const Range& range : step.gradient_received) {
          for (int64_t i = range.begin; i < range.end; ++i) {
            rows[i] = travelling.at(next++);
          }
        }
        REQUIRE(next == travelling.size());
        for (const Block& block : step.blocks) {
          for (int64_t j = 0; j < block.key.size(); ++j) {
            int64_t& row = rows[block.key_gradient + j];
            const int64_t token = kv[(owner + t) % ring][t][block.key.begin + j];
            REQUIRE((row == -1 || row == token));
            row = token;
          }
        }
        if (trial % 2 == 1) {  // unpruned: rows that nothing attends to travel too
          rows = packed_of_share(layout, owner);
        }
        REQUIRE(std::count(rows.begin(), rows.end(), -1) == 0);
        travelling = rows;
      }
      REQUIRE(travelling == take(packed_of_share(layout, owner), plans[owner].gradient_home));
    }
  }
}

TEST_CASE("batches hold the blocks again, rows once per batch, initialising batches first") {
  std::mt19937 rng(13);
  for (int trial = 0; trial < 60; ++trial) {
    const SequenceLayout layout(random_forest(rng, 20), 3, 1, static_cast<Placement>(trial % 3));
    for (const RingImpl impl : {RingImpl::kP2p, RingImpl::kAllGather}) {
      for (const auto& plan : ring_plans(layout, {impl, 0, trial % 5})) {
        for (const RingStep& step : plan.steps) {
          std::size_t blocks = 0;
          bool merging = false;
          for (const BlockBatch& batch : step.batches) {
            RangeSet rows;
            for (const int64_t begin : batch.query_begins) {
              const RangeSet more({{begin, begin + batch.query_rows}});
              REQUIRE(rows.intersected(more).size() == 0);
              rows = rows.united(more);
            }
            REQUIRE(batch.query_begins.size() == batch.key_begins.size());
            REQUIRE(batch.query_begins.size() == batch.key_gradient_begins.size());
            REQUIRE((batch.merge || !merging));
            merging = batch.merge;
            blocks += batch.query_begins.size();
          }
          REQUIRE(blocks == step.blocks.size());
        }
      }
    }
  }
}

TEST_CASE("equal documents share one kernel call, completions of a prompt one block") {
  const auto equal =
      plan_attention(SequenceLayout(std::vector<int64_t>(32, 20), 1, 2), {4, 2, 8}, 0);
  REQUIRE(equal.steps.size() == 1);
  REQUIRE(equal.steps[0].batches.size() == 1);
  CHECK(equal.steps[0].batches[0].query_begins.size() == 32);
  const auto group = plan_attention(
      SequenceLayout(SegmentForest({{-1, 40}, {0, 7}, {0, 5}, {0, 9}}), 1, 1), {4, 2, 8}, 0);
  const auto& blocks = group.steps[0].blocks;
  REQUIRE(blocks.size() == 5);  // four diagonals, and all completions against the prompt
  CHECK(blocks.back().query == Range{40, 61});
  CHECK(blocks.back().key == Range{0, 40});
}

TEST_CASE("any head split gives every rank uniform groups that cover its heads, chunked or not") {
  const std::vector<std::tuple<int64_t, int64_t, int64_t>> cases{
      {28, 4, 8}, {40, 8, 16}, {6, 2, 4}, {14, 2, 4}, {5, 1, 3}, {8, 8, 3}, {8, 2, 8}, {7, 1, 2}};
  for (const auto& [hq, hk, ulysses] : cases) {
    for (const int64_t stride : {0, 1, 3}) {
      int64_t next_head = 0;
      for (int64_t u = 0; u < ulysses; ++u) {
        const auto plan = plan_attention(SequenceLayout({64}, 1, ulysses), {hq, hk, 8}, u,
                                         {RingImpl::kAllGather, stride});
        const Range query_heads = plan.head_split.query_heads_of[u];
        CHECK(query_heads.begin == next_head);
        next_head = query_heads.end;
        int64_t q = 0;
        int64_t kv = 0;
        for (const HeadChunk& chunk : plan.head_chunks) {
          CHECK(chunk.kv_heads.begin == kv);
          CHECK((stride == 0 || chunk.kv_heads.size() <= stride));
          for (const HeadGroup& group : chunk.groups) {
            CHECK(group.query_heads.begin == q);
            CHECK(group.kv_heads.begin == kv);
            CHECK(group.query_heads.size() % group.kv_heads.size() == 0);
            const int64_t per_kv = group.query_heads.size() / group.kv_heads.size();
            for (int64_t h = group.query_heads.begin; h < group.query_heads.end; ++h) {
              const int64_t global_kv = (query_heads.begin + h) / (hq / hk);
              const int64_t local_kv =
                  group.kv_heads.begin + (h - group.query_heads.begin) / per_kv;
              CHECK(plan.head_split.kv_heads_of[u].begin + local_kv == global_kv);
            }
            q = group.query_heads.end;
            kv = group.kv_heads.end;
          }
          CHECK(chunk.kv_heads.end == kv);
        }
        CHECK(q == plan.local_query_heads());
        CHECK(kv == plan.local_kv_heads());
      }
      CHECK(next_head == hq);
    }
  }
}

TEST_CASE("parts of tensor ranks are split over Ulysses by the layer's groups of heads") {
  struct Case {
    int64_t heads, kv_heads, tensor, ulysses;
  };
  for (const auto& [heads, kv_heads, tensor, ulysses] :
       {Case{12, 4, 3, 2}, Case{8, 2, 3, 2}, Case{14, 2, 5, 2}, Case{7, 1, 3, 2}, Case{8, 8, 3, 1},
        Case{3, 3, 4, 1}, Case{6, 2, 4, 1}}) {
    int64_t next_head = 0;
    for (int64_t t = 0; t < tensor; ++t) {
      const HeadShape part = part_of_heads({heads, kv_heads, 8}, tensor, t);
      const Range queries = part.query_heads(), keys = part.kv_heads();
      CHECK(queries.begin == next_head);
      next_head = queries.end;
      for (int64_t u = 0; u < ulysses; ++u) {
        const auto plan = plan_attention(SequenceLayout({64}, 1, ulysses), part, u);
        CHECK(plan.head_split.query_heads_of.back().end == queries.size());
        CHECK((queries.empty() || plan.head_split.kv_heads_of.back().end == keys.size()));
        const Range own = plan.head_split.query_heads_of[u];
        const std::vector<int64_t> kv_of = plan.head_split.kv_head_of(u);
        int64_t q = 0;  // of this rank
        for (const HeadChunk& chunk : plan.head_chunks) {
          for (const HeadGroup& group : chunk.groups) {
            const int64_t per_kv = group.query_heads.size() / group.kv_heads.size();
            for (int64_t h = group.query_heads.begin; h < group.query_heads.end; ++h, ++q) {
              const int64_t kv = (queries.begin + own.begin + h) / (heads / kv_heads);
              const int64_t found = group.kv_heads.begin + (h - group.query_heads.begin) / per_kv;
              CHECK(keys.begin + plan.head_split.kv_heads_of[u].begin + found == kv);
              CHECK(kv_of[h] == found);
            }
          }
        }
        CHECK(q == own.size());
      }
    }
    CHECK(next_head == heads);
  }
  const SequenceLayout two(std::vector<int64_t>{64}, 1, 2);
  CHECK_THROWS_WITH(plan_attention(two, part_of_heads({3, 3, 8}, 3, 1), 0),
                    "attention: ulysses size 2 exceeds the 1 query heads of a tensor rank; use a "
                    "ring axis for the rest");
  // A rank without heads attends nothing, on all Ulysses ranks alike.
  const auto none = plan_attention(two, part_of_heads({3, 3, 8}, 4, 3), 1);
  CHECK(none.head_chunks.empty());
  CHECK(none.traffic == Traffic{});
  CHECK_THROWS_AS(split_heads({4, 2, 8, Range{3, 5}}, 1), std::invalid_argument);
  CHECK_THROWS_AS(part_of_heads({4, 2, 8}, 2, 2), std::out_of_range);
}

TEST_CASE("the work of all ranks equals what their plans say") {
  std::mt19937 rng(14);
  for (int trial = 0; trial < 80; ++trial) {
    const int64_t ring = trial % 5 + 1, ulysses = trial % 3 + 1;
    const SequenceLayout layout(random_forest(rng, 40), ring, ulysses,
                                static_cast<Placement>(trial % 3));
    for (const RingImpl impl : {RingImpl::kP2p, RingImpl::kAllGather}) {
      for (const RingImpl backward : {RingImpl::kP2p, RingImpl::kAllGather}) {
        const PlanOptions options{impl, 0, trial % 4 == 3 ? trial % 13 + 1 : 0, trial % 5 != 0,
                                  backward};
        const HeadShape heads{6, 2, 8,
                              trial % 2 == 0 ? std::nullopt : std::make_optional(Range{1, 5})};
        const auto work = work_of_ranks(layout, heads, options);
        REQUIRE(static_cast<int64_t>(work.size()) == ring * ulysses);
        for (int64_t rank = 0; rank < ring * ulysses; ++rank) {
          const AttentionPlan plan = plan_attention(layout, heads, rank, options);
          REQUIRE(work[rank].traffic == plan.traffic);
          REQUIRE(work[rank].attended_pairs == plan.attended_pairs);
          REQUIRE(work[rank].query_heads == plan.local_query_heads());
          int64_t pairs = 0;  // of the blocks, in either pass
          for (const Range steps : {plan.forward_steps, plan.backward_steps}) {
            pairs = 0;
            for (int64_t s = steps.begin; s < steps.end; ++s) {
              for (const Block& b : plan.steps[s].blocks) {
                pairs += pairs_of({b.query, b.key, b.kind, b.offset}, options.window);
              }
            }
            REQUIRE(pairs == plan.attended_pairs);
          }
        }
      }
    }
  }
}

TEST_CASE("131,072 tokens are planned in under 5 s on up to 1024 ranks") {
  const HeadShape heads{32, 8, 128};
  for (const int64_t ranks : {8, 64, 256, 1024}) {
    for (const int64_t length : {131072, 4096}) {
      const auto start = std::chrono::steady_clock::now();
      const std::vector<int64_t> lengths(131072 / length, length);
      const SequenceLayout layout(SegmentForest::of_documents(lengths), ranks, 1,
                                  Placement::kDocumentAware);
      int64_t pairs = 0;
      for (const RankWork& work : work_of_ranks(layout, heads)) {
        pairs += work.attended_pairs;
      }
      CHECK(pairs == (131072 / length) * length * (length + 1) / 2);
      for (const PlanOptions& options :
           {PlanOptions{}, PlanOptions{RingImpl::kP2p, 0, 0, true, RingImpl::kAllGather}}) {
        CHECK(plan_attention(layout, heads, ranks / 2, options).share_rows > 0);
      }
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
      CAPTURE(ranks, length);
      CHECK(spent.count() < 5.0);
      std::printf("planning, %ld ranks, documents of %ld: %.2f s\n", static_cast<long>(ranks),
                  static_cast<long>(length), spent.count());
    }
  }
}

TEST_CASE("a gathered backward of p2p sends what the mask needs, where p2p passes rows on") {
  const int64_t S = 1024, P = 8;
  const SequenceLayout layout({S}, P, 1);
  const PlanOptions gathered{RingImpl::kP2p, 0, 0, true, RingImpl::kAllGather};
  int64_t p2p = 0, again = 0, gather = 0;
  for (int64_t r = 0; r < P; ++r) {
    const AttentionPlan plan = plan_attention(layout, {4, 2, 8}, r, gathered);
    const AttentionPlan whole = plan_attention(layout, {4, 2, 8}, r, {RingImpl::kAllGather});
    CHECK(plan.backward_impl() == RingImpl::kAllGather);
    CHECK(plan.steps.size() == static_cast<std::size_t>(P + 1));
    CHECK(plan.steps.back().blocks == whole.steps.front().blocks);
    CHECK(plan.traffic.ring_kv_grad == whole.traffic.ring_kv_grad);
    p2p += plan.traffic.ring_kv;
    again += plan.traffic.ring_kv_again;
    gather += whole.traffic.ring_kv;
  }
  CHECK(again == gather);
  CHECK(again < p2p);
  // Nothing to gather on one ring rank.
  CHECK(plan_attention(SequenceLayout({S}, 1, 2), {4, 2, 8}, 0, gathered).backward_impl() ==
        RingImpl::kP2p);
}

TEST_CASE("even, unpruned traffic equals the closed formulas") {
  const int64_t S = 1024, hq = 32, hk = 8, d = 16;
  SECTION("ulysses, P <= Hk: (P-1)/P^2 S D (2Hq + 2Hk)") {
    const int64_t P = 4;
    const auto t = plan_attention(SequenceLayout({S}, 1, P), {hq, hk, d}, 1).traffic;
    CHECK(t.ulysses_query + t.ulysses_kv + t.ulysses_output ==
          (P - 1) * S * d * (2 * hq + 2 * hk) / (P * P));
    CHECK(t.ulysses_kv_grad == t.ulysses_kv);
    CHECK(t.ring_kv == 0);
  }
  SECTION("ulysses, P > Hk: KV counts P heads") {
    const int64_t P = 16;
    const auto t = plan_attention(SequenceLayout({S}, 1, P), {hq, hk, d}, 3).traffic;
    CHECK(t.ulysses_query + t.ulysses_kv + t.ulysses_output ==
          (P - 1) * S * d * (2 * hq + 2 * P) / (P * P));
  }
  SECTION("ring, either form: (P-1)/P 2 S Hk D, the gradient in as many hops") {
    const int64_t P = 8;
    for (const RingImpl impl : {RingImpl::kP2p, RingImpl::kAllGather}) {
      const auto t =
          plan_attention(SequenceLayout({S}, P, 1), {hq, hk, d}, 5, {impl, 0, 0, /*prune=*/false})
              .traffic;
      CHECK(t.ring_kv == (P - 1) * 2 * S * hk * d / P);
      CHECK(t.ring_kv_again == t.ring_kv);
      CHECK(t.ring_kv_grad == t.ring_kv);
      CHECK(t.ulysses_query == 0);
    }
  }
  SECTION("hybrid: both parts, KV heads max(Hk, U) / U on each ring") {
    const int64_t U = 4, R = 2, P = U * R;
    const auto t =
        plan_attention(SequenceLayout({S}, R, U), {hq, hk, d}, 5, {RingImpl::kP2p, 0, 0, false})
            .traffic;
    CHECK(t.ulysses_query + t.ulysses_kv + t.ulysses_output ==
          (U - 1) * (S / P) * d * (2 * hq + 2 * hk) / U);
    CHECK(t.ring_kv == (R - 1) * 2 * (S / R) * (hk / U) * d);
  }
}

TEST_CASE(
    "pruning sends what the mask needs: three quarters of a causal document with all-gather") {
  const int64_t S = 1024, P = 4;
  int64_t sent = 0;
  int64_t unpruned = 0;
  for (int64_t r = 0; r < P; ++r) {
    const SequenceLayout layout({S}, P, 1);
    sent += plan_attention(layout, {4, 2, 8}, r, {RingImpl::kAllGather}).traffic.ring_kv;
    unpruned +=
        plan_attention(layout, {4, 2, 8}, r, {RingImpl::kAllGather, 0, 0, false}).traffic.ring_kv;
  }
  CHECK(4 * sent == 3 * unpruned);
}

TEST_CASE("a window cuts what is sent to the tokens before each edge") {
  const SequenceLayout layout(SegmentForest::of_documents({1024}), 4, 1, Placement::kContiguous);
  for (const RingImpl impl : {RingImpl::kP2p, RingImpl::kAllGather}) {
    const auto t = plan_attention(layout, {4, 2, 8}, 1, {impl, 0, /*window=*/16}).traffic;
    CHECK(t.ring_kv == 15 * 2 * 2 * 8);
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
  CHECK_THROWS_WITH(plan_attention(layout, {3, 1, 8}, 0),
                    Catch::Contains("ulysses size 4 exceeds the 3"));
  CHECK_THROWS_WITH(plan_attention(layout, {6, 4, 8}, 0), Catch::Contains("got 6 and 4"));
  CHECK_THROWS_WITH(plan_attention(layout, {8, 4, 8}, 0, {RingImpl::kP2p, -1}),
                    Catch::Contains("-1"));
}
