// Guards: a token lost, doubled or misplaced by the layout; a remainder that always lands on the
// same rank; a packing plan over budget or unequal between data-parallel ranks.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "sp/layout/packing.h"
#include "sp/layout/range_set.h"
#include "sp/layout/sequence_layout.h"

using ringside::sp::even_part;
using ringside::sp::pack_documents;
using ringside::sp::Placement;
using ringside::sp::Range;
using ringside::sp::RangeSet;
using ringside::sp::SegmentForest;
using ringside::sp::SequenceLayout;

namespace {

std::vector<int64_t> random_lengths(std::mt19937& rng, int64_t max_documents, int64_t max_length) {
  std::vector<int64_t> lengths(std::uniform_int_distribution<int64_t>(0, max_documents)(rng));
  for (int64_t& n : lengths) {
    n = std::uniform_int_distribution<int64_t>(0, max_length)(rng);
  }
  return lengths;
}

}  // namespace

TEST_CASE("even_part covers everything once with sizes differing by at most one") {
  for (int64_t total : {0, 1, 5, 7, 28}) {
    for (int64_t parts : {1, 2, 3, 8}) {
      int64_t next = 0;
      for (int64_t i = 0; i < parts; ++i) {
        const Range part = even_part(total, parts, i);
        CHECK(part.begin == next);
        CHECK((part.size() == total / parts || part.size() == total / parts + 1));
        next = part.end;
      }
      CHECK(next == total);
    }
  }
}

TEST_CASE("segments count positions along their path and packed indices in depth-first order") {
  const SegmentForest forest({{-1, 5}, {0, 3}, {1, 2}, {0, 4}, {-1, 6}});
  CHECK(forest.num_tokens() == 20);
  CHECK(forest.first_position(2) == 8);
  CHECK(forest.first_position(3) == 5);
  CHECK(forest.first_position(4) == 0);
  CHECK(forest.packed(3) == Range{10, 14});
  CHECK(forest.subtree_end(0) == 4);
  CHECK(forest.packed_subtree_end(1) == 10);
  CHECK(forest.attended_pairs(2, {0, 2}) == 9 + 10);
  CHECK_THROWS_WITH(SegmentForest({{-1, 5}, {-1, 2}, {0, 1}}),
                    Catch::Contains("segment 2 has parent 0"));
}

TEST_CASE("a range set places its members one after another") {
  const RangeSet set({{10, 14}, {2, 5}, {14, 15}});
  CHECK(set.size() == 8);
  CHECK(set.ranges() == std::vector<Range>{{2, 5}, {10, 15}});
  CHECK(set.place_of(11) == 4);
  CHECK(set.places_of(RangeSet({{3, 5}, {10, 12}})) == std::vector<Range>{{1, 5}});
  CHECK(set.intersected(RangeSet({{4, 12}})).ranges() == std::vector<Range>{{4, 5}, {10, 12}});
  CHECK_THROWS_WITH(set.places_of(RangeSet({{4, 6}})), Catch::Contains("[4, 6) is not in the set"));
}

TEST_CASE("every token is on exactly one rank, restore undoes shard") {
  std::mt19937 rng(7);
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t ring = std::uniform_int_distribution<int64_t>(1, 5)(rng);
    const int64_t ulysses = std::uniform_int_distribution<int64_t>(1, 4)(rng);
    const auto placement = static_cast<Placement>(trial % 3);
    const SequenceLayout layout(
        SegmentForest::of_documents(random_lengths(rng, 6, 3 * 2 * ring + 1)), ring, ulysses,
        placement);
    std::vector<int64_t> field(layout.num_tokens());
    std::iota(field.begin(), field.end(), 1000);
    std::vector<std::vector<int64_t>> shards;
    int64_t total = 0;
    for (int64_t rank = 0; rank < layout.sp_size(); ++rank) {
      shards.push_back(layout.shard<int64_t>(field, rank));
      REQUIRE(static_cast<int64_t>(shards.back().size()) == layout.num_local_tokens(rank));
      total += layout.num_local_tokens(rank);
    }
    REQUIRE(total == layout.num_tokens());
    REQUIRE(layout.restore<int64_t>(shards) == field);
  }
}

TEST_CASE("positions count from each document's own start, under zigzag too") {
  const SequenceLayout layout({5, 0, 3}, /*ring_size=*/2, /*ulysses_size=*/1);
  std::vector<std::vector<int64_t>> shards;
  for (int64_t rank = 0; rank < 2; ++rank) {
    shards.push_back(layout.positions(rank));
  }
  CHECK(layout.restore<int64_t>(shards) == std::vector<int64_t>{0, 1, 2, 3, 4, 0, 1, 2});
}

TEST_CASE("zigzag pairs an early chunk with its mirror") {
  const SequenceLayout layout({8}, /*ring_size=*/2, /*ulysses_size=*/1);
  CHECK(layout.packed_indices(0) == std::vector<int64_t>{0, 1, 6, 7});
  CHECK(layout.packed_indices(1) == std::vector<int64_t>{2, 3, 4, 5});
}

TEST_CASE("remainders rotate, so many one-token documents spread over the ring") {
  const SequenceLayout layout(std::vector<int64_t>(64, 1), /*ring_size=*/4, /*ulysses_size=*/1);
  for (int64_t rank = 0; rank < 4; ++rank) {
    CHECK(layout.num_local_tokens(rank) == 16);
  }
}

TEST_CASE("local_index_of_packed inverts packed_indices") {
  const SequenceLayout layout({7, 2, 11}, 2, 2);
  for (int64_t rank = 0; rank < 4; ++rank) {
    const auto packed = layout.packed_indices(rank);
    const auto local = layout.local_index_of_packed(rank);
    CHECK(std::count(local.begin(), local.end(), -1) ==
          layout.num_tokens() - static_cast<int64_t>(packed.size()));
    for (std::size_t i = 0; i < packed.size(); ++i) {
      CHECK(local[packed[i]] == static_cast<int64_t>(i));
    }
  }
}

TEST_CASE("bad layouts and fields are refused with the value") {
  CHECK_THROWS_WITH(SequenceLayout({3, -2}, 1, 1), Catch::Contains("segment 1 has length -2"));
  CHECK_THROWS_WITH(SequenceLayout({3}, 0, 1), Catch::Contains("at least 1, got 0"));
  const SequenceLayout layout({3}, 1, 1);
  CHECK_THROWS_WITH(layout.shard<int64_t>(std::vector<int64_t>(4), 0),
                    Catch::Contains("has size 4, expected 3"));
}

TEST_CASE("packing keeps the budget, places every document once, equal counts on all dp ranks") {
  std::mt19937 rng(3);
  for (int trial = 0; trial < 200; ++trial) {
    const auto lengths = random_lengths(rng, 40, 60);
    const int64_t dp = std::uniform_int_distribution<int64_t>(1, 4)(rng);
    const int64_t budget = std::uniform_int_distribution<int64_t>(20, 200)(rng);
    const auto plan = pack_documents(lengths, dp, budget);
    REQUIRE(static_cast<int64_t>(plan.micro_batches.size()) == dp);
    std::vector<int> seen(lengths.size(), 0);
    for (const auto& rank : plan.micro_batches) {
      REQUIRE(static_cast<int64_t>(rank.size()) == plan.num_micro_batches());
      for (const auto& documents : rank) {
        int64_t tokens = 0;
        for (const int64_t d : documents) {
          ++seen[d];
          tokens += lengths[d];
        }
        REQUIRE((tokens <= budget || documents.size() == 1));
      }
    }
    REQUIRE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
}

TEST_CASE("the plan hash tells plans apart") {
  const std::vector<int64_t> lengths{5, 9, 9, 4};
  CHECK(pack_documents(lengths, 2, 14).hash() == pack_documents(lengths, 2, 14).hash());
  CHECK(pack_documents(lengths, 2, 14).hash() != pack_documents(lengths, 1, 28).hash());
  CHECK(pack_documents(lengths, 2, 14).hash() != pack_documents(lengths, 2, 9).hash());
}
