// Guards: blocks lost or run twice by the grouping into varlen_groups, query rows that stand twice
// in a varlen_group or are merged before they are initialised, gradient rows that two parallel
// additions share, window masks that the kernel would read differently. Oracle: the definition of a
// block, pair by pair.
#include "sp/attention/cuda/varlen_groups.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>

using namespace ringside::sp;

namespace {

using Pair = std::pair<int64_t, int64_t>;

bool block_sees(const Block& block, int64_t i, int64_t j, int64_t window) {
  switch (block.kind) {
    case BlockKind::kFull:
      return true;
    case BlockKind::kCausal:
      return j <= i;
    case BlockKind::kWindowed:
      break;
  }
  const int64_t distance = i + block.offset - j;
  return 0 <= distance && distance < window;
}

// How the flash kernel reads a mask: bounds of max_k or more mean none, and "none" on one side of a
// bounded one means max_k.
bool kernel_sees(VarlenGroupMask mask, int64_t max_k, int64_t n, int64_t m, int64_t i, int64_t j) {
  int64_t left = mask.left >= max_k ? -1 : mask.left;
  int64_t right = mask.right >= max_k ? -1 : mask.right;
  if (left < 0 && right < 0) {
    return true;
  }
  left = left < 0 ? max_k : left;
  right = right < 0 ? max_k : right;
  return i + m - n - left <= j && j <= i + m - n + right;
}

// How often each pair of query row and key row, and of query row and gradient row, is computed.
struct Pairs {
  std::map<Pair, int> keys;
  std::map<Pair, int> gradients;
  bool operator==(const Pairs&) const = default;

  void add(int64_t query, int64_t key, int64_t gradient) {
    ++keys[{query, key}];
    ++gradients[{query, gradient}];
  }
};

Pairs pairs_of_blocks(const std::vector<Block>& blocks, int64_t window) {
  Pairs pairs;
  for (const Block& b : blocks) {
    for (int64_t i = 0; i < b.query.size(); ++i) {
      for (int64_t j = 0; j < b.key.size(); ++j) {
        if (block_sees(b, i, j, window)) {
          pairs.add(b.query.begin + i, b.key.begin + j, b.key_gradient + j);
        }
      }
    }
  }
  return pairs;
}

Pairs pairs_of_varlen_groups(const std::vector<VarlenGroup>& varlen_groups) {
  Pairs pairs;
  for (const VarlenGroup& varlen_group : varlen_groups) {
    const int64_t max_k = longest(packed_keys(varlen_group));
    for (const VarlenEntry& entry : varlen_group.entries) {
      const int64_t n = entry.query.size(), m = entry.num_keys();
      int64_t first = 0;  // packed key row of a range within its entry
      for (const KeyRange& keys : entry.keys) {
        for (int64_t j = 0; j < keys.rows.size(); ++j) {
          for (int64_t i = 0; i < n; ++i) {
            if (kernel_sees(varlen_group.mask, max_k, n, m, i, first + j)) {
              pairs.add(entry.query.begin + i, keys.rows.begin + j, keys.gradient + j);
            }
          }
        }
        first += keys.rows.size();
      }
    }
  }
  return pairs;
}

// No query row twice in a varlen_group, and none merged before a varlen_group has initialised it or
// an earlier step has.
void check_rows(const std::vector<VarlenGroup>& varlen_groups, bool first_step) {
  std::set<int64_t> initialised;
  for (const VarlenGroup& varlen_group : varlen_groups) {
    std::set<int64_t> rows;
    for (const Range& range : query_rows(varlen_group)) {
      for (int64_t row = range.begin; row < range.end; ++row) {
        REQUIRE(rows.insert(row).second);
        REQUIRE((!first_step || !varlen_group.merge || initialised.count(row) == 1));
        REQUIRE((varlen_group.merge || initialised.count(row) == 0));
      }
    }
    initialised.insert(rows.begin(), rows.end());
  }
}

// Every packed key row is added to its gradient row once; each gradient row stands in one sum,
// whose sources are in the order of the packing.
void check_gradient_sums(const VarlenGroup& varlen_group) {
  std::multiset<Pair> expected, got;
  int64_t packed = 0;
  for (const VarlenEntry& entry : varlen_group.entries) {
    for (const KeyRange& keys : entry.keys) {
      for (int64_t j = 0; j < keys.rows.size(); ++j) {
        expected.insert({packed++, keys.gradient + j});
      }
    }
  }
  const RowSums sums = gradient_sums(varlen_group);
  std::set<int64_t> rows;
  for (std::size_t i = 0; i < sums.sums.size(); ++i) {
    const RowSum& sum = sums.sums[i];
    const int64_t end = i + 1 < sums.sums.size() ? sums.sums[i + 1].first : sums.rows;
    REQUIRE(sum.first < end);
    for (int64_t r = 0; r < end - sum.first; ++r) {
      REQUIRE(rows.insert(sum.to + r).second);
      for (int64_t s = sum.sources_begin; s < sum.sources_end; ++s) {
        REQUIRE((s == sum.sources_begin || sums.sources[s - 1] < sums.sources[s]));
        got.insert({sums.sources[s] + r, sum.to + r});
      }
    }
  }
  REQUIRE(got == expected);
}

std::vector<SegmentForest> forests() {
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
                         {-1, 4}})};
}

Block windowed_block(int64_t queries, int64_t keys, int64_t offset) {
  return {{0, queries}, {0, keys}, 0, BlockKind::kWindowed, offset, false};
}

}  // namespace

TEST_CASE("varlen_groups compute each pair of every plan once, on disjoint and initialised rows",
          "[unit]") {
  int64_t steps = 0;
  for (const SegmentForest& forest : forests()) {
    for (const int64_t ring : {1, 2, 3, 4}) {
      for (const Placement placement :
           {Placement::kZigzag, Placement::kContiguous, Placement::kDocumentAware}) {
        const SequenceLayout layout(forest, ring, 1, placement);
        for (const int64_t window : {0, 1, 2, 7, 20, 64}) {
          for (const RingImpl impl : {RingImpl::kP2p, RingImpl::kAllGather}) {
            for (int64_t rank = 0; rank < ring; ++rank) {
              const AttentionPlan plan =
                  plan_attention(layout, {2, 1, 8}, rank, {impl, 0, window, true});
              for (std::size_t s = 0; s < plan.steps.size(); ++s) {
                const std::vector<VarlenGroup> varlen_groups =
                    make_varlen_groups(plan.steps[s].blocks, window);
                REQUIRE(pairs_of_varlen_groups(varlen_groups) ==
                        pairs_of_blocks(plan.steps[s].blocks, window));
                check_rows(varlen_groups, s == 0);
                std::for_each(varlen_groups.begin(), varlen_groups.end(), check_gradient_sums);
                ++steps;
              }
            }
          }
        }
      }
    }
  }
  CHECK(steps > 1000);
}

TEST_CASE("blocks of any lengths share a varlen_group and keep their order", "[unit]") {
  const std::vector<VarlenGroup> documents =
      make_varlen_groups({{{0, 5}, {0, 5}, 0, BlockKind::kCausal},
                          {{5, 6}, {5, 6}, 5, BlockKind::kCausal},
                          {{6, 90}, {6, 90}, 6, BlockKind::kCausal}},
                         0);
  REQUIRE(documents.size() == 1);
  CHECK(documents[0].mask.causal());
  CHECK(query_rows(documents[0]) == std::vector<Range>{{0, 5}, {5, 6}, {6, 90}});
  CHECK(cumulative_rows(query_rows(documents[0])) == std::vector<int32_t>{0, 5, 6, 90});
  CHECK(longest(packed_keys(documents[0])) == 84);
  // Rows that lie one after another are one move, so that nothing is copied.
  CHECK(to_packed(query_rows(documents[0])).moves == std::vector<RowMove>{{0, 0, 0}});
  CHECK(keys_to_packed(documents[0]).moves == std::vector<RowMove>{{0, 0, 0}});
  CHECK(gradient_sums(documents[0]).identity(90));

  // Windowed blocks stay apart. The first two share rows, so they need two varlen_groups.
  const Block apart[] = {{{0, 4}, {0, 8}, 0, BlockKind::kWindowed, 8, true},
                         {{2, 6}, {8, 16}, 8, BlockKind::kWindowed, 8, true},
                         {{6, 10}, {16, 24}, 16, BlockKind::kWindowed, 8, true}};
  const std::vector<VarlenGroup> windowed = make_varlen_groups({apart[0], apart[1], apart[2]}, 6);
  REQUIRE(windowed.size() == 2);
  CHECK(query_rows(windowed[0]) == std::vector<Range>{{0, 4}, {6, 10}});
  CHECK(query_rows(windowed[1]) == std::vector<Range>{{2, 6}});
}

TEST_CASE("an entry has all keys of its rows: its ancestors' in full, then its own", "[unit]") {
  // A prompt of 4 rows, two children of 3 and 2, and a child of the second with 5.
  const std::vector<Block> blocks = {{{0, 4}, {0, 4}, 0, BlockKind::kCausal},
                                     {{4, 7}, {4, 7}, 4, BlockKind::kCausal},
                                     {{7, 9}, {7, 9}, 7, BlockKind::kCausal},
                                     {{9, 14}, {9, 14}, 9, BlockKind::kCausal},
                                     {{4, 14}, {0, 4}, 0, BlockKind::kFull, 0, true},
                                     {{9, 14}, {7, 9}, 7, BlockKind::kFull, 0, true}};
  const std::vector<VarlenGroup> groups = make_varlen_groups(blocks, 0);
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].mask.causal());
  CHECK_FALSE(groups[0].merge);
  CHECK(query_rows(groups[0]) == std::vector<Range>{{0, 4}, {4, 7}, {7, 9}, {9, 14}});
  CHECK(packed_keys(groups[0]) == std::vector<Range>{{0, 4}, {4, 11}, {11, 17}, {17, 28}});
  CHECK(groups[0].entries[1].keys == std::vector<KeyRange>{{{0, 7}, 0}});
  CHECK(groups[0].entries[3].keys == std::vector<KeyRange>{{{0, 4}, 0}, {{7, 14}, 7}});
  const RowSums sums = gradient_sums(groups[0]);
  CHECK(sums.rows == 14);
  // The prompt's rows have four sources, the second child's two.
  CHECK(sums.sums[0].sources_end - sums.sums[0].sources_begin == 4);
  CHECK(std::vector<int64_t>(sums.sources.begin(), sums.sources.begin() + 4) ==
        std::vector<int64_t>{0, 4, 11, 17});
}

TEST_CASE("keys are not repeated without bound", "[unit]") {
  const auto group_of = [](int64_t prompt, int64_t completions) {
    std::vector<Segment> segments{{-1, prompt}};
    segments.insert(segments.end(), completions, Segment{0, 4});
    const SequenceLayout layout(SegmentForest(segments), 1, 1);
    return make_varlen_groups(plan_attention(layout, {2, 1, 8}, 0).steps[0].blocks, 0);
  };
  CHECK(group_of(40, 4).size() == 1);
  const std::vector<VarlenGroup> apart = group_of(400, 64);
  REQUIRE(apart.size() == 2);
  CHECK(apart[1].merge);
  CHECK(packed_keys(apart[1]).back().end == 400);
}

TEST_CASE("windowed rectangles of any shape either reach the kernel exactly or are refused",
          "[unit]") {
  int64_t exact = 0, refused = 0;
  for (int64_t n = 1; n <= 12; ++n) {
    for (int64_t m = 1; m <= 12; ++m) {
      for (int64_t offset = 0; offset <= 24; ++offset) {
        for (int64_t window = 1; window <= 26; ++window) {
          const Block block = windowed_block(n, m, offset);
          bool blind = false;  // a query that sees nothing
          for (int64_t i = 0; i < n; ++i) {
            bool sees = false;
            for (int64_t j = 0; j < m; ++j) {
              sees = sees || block_sees(block, i, j, window);
            }
            blind = blind || !sees;
          }
          if (blind) {
            REQUIRE_THROWS_AS(make_varlen_groups({block}, window), std::invalid_argument);
            ++refused;
            continue;
          }
          // Bounds of max_k or more do not bind: a right one that has to, in a block with more
          // queries than keys.
          const int64_t right = offset - std::min(m, n + offset) + n;
          if (right >= m && right > 0 && right < n - 1) {
            REQUIRE_THROWS_WITH(make_varlen_groups({block}, window),
                                Catch::Contains("more queries than keys"));
            ++refused;
            continue;
          }
          // With a longer block beside it, max_k is another.
          const Block beside{{100, 140}, {50, 90}, 50, BlockKind::kWindowed, 0, false};
          REQUIRE(pairs_of_varlen_groups(make_varlen_groups({block}, window)) ==
                  pairs_of_blocks({block}, window));
          REQUIRE(pairs_of_varlen_groups(make_varlen_groups({block, beside}, window)) ==
                  pairs_of_blocks({block, beside}, window));
          ++exact;
        }
      }
    }
  }
  CHECK(exact > 1000);
  CHECK(refused > 1000);
}

TEST_CASE("blocks that no call can express are refused by name", "[unit]") {
  CHECK_THROWS_WITH(make_varlen_groups({{{0, 4}, {0, 5}, 0, BlockKind::kCausal}}, 0),
                    Catch::Contains("not square"));
  CHECK_THROWS_WITH(make_varlen_groups({{{3, 3}, {0, 5}, 0, BlockKind::kFull}}, 0),
                    Catch::Contains("queries 3 to 3"));
  CHECK_THROWS_AS(make_varlen_groups({windowed_block(4, 4, 0)}, 0), std::invalid_argument);
  CHECK_THROWS_AS(cumulative_rows({{0, int64_t{1} << 30}, {0, int64_t{1} << 30}}),
                  std::invalid_argument);
}
