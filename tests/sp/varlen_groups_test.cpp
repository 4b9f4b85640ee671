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
    for (std::size_t b = 0; b < varlen_group.queries.size(); ++b) {
      const int64_t n = varlen_group.queries[b].size(), m = varlen_group.keys[b].size();
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < m; ++j) {
          if (kernel_sees(varlen_group.mask, longest(varlen_group.keys), n, m, i, j)) {
            pairs.add(varlen_group.queries[b].begin + i, varlen_group.keys[b].begin + j,
                      varlen_group.key_gradients[b] + j);
          }
        }
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
    for (const Range& range : varlen_group.queries) {
      for (int64_t row = range.begin; row < range.end; ++row) {
        REQUIRE(rows.insert(row).second);
        REQUIRE((!first_step || !varlen_group.merge || initialised.count(row) == 1));
        REQUIRE((varlen_group.merge || initialised.count(row) == 0));
      }
    }
    initialised.insert(rows.begin(), rows.end());
  }
}

// Every packed key row goes to its gradient row once; no gradient row twice in a part.
void check_gradient_parts(const VarlenGroup& varlen_group) {
  std::vector<int64_t> expected;
  for (std::size_t b = 0; b < varlen_group.keys.size(); ++b) {
    for (int64_t j = 0; j < varlen_group.keys[b].size(); ++j) {
      expected.push_back(varlen_group.key_gradients[b] + j);
    }
  }
  std::vector<int64_t> got(expected.size(), -1);
  for (const RowMoves& part : gradient_parts(varlen_group)) {
    std::set<int64_t> rows;
    for (std::size_t i = 0; i < part.moves.size(); ++i) {
      const int64_t end = i + 1 < part.moves.size() ? part.moves[i + 1].first : part.rows;
      for (int64_t r = 0; r < end - part.moves[i].first; ++r) {
        REQUIRE(rows.insert(part.moves[i].to + r).second);
        REQUIRE(got.at(part.moves[i].from + r) == -1);
        got[part.moves[i].from + r] = part.moves[i].to + r;
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
                std::for_each(varlen_groups.begin(), varlen_groups.end(), check_gradient_parts);
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
  CHECK(documents[0].queries == std::vector<Range>{{0, 5}, {5, 6}, {6, 90}});
  CHECK(cumulative_rows(documents[0].queries) == std::vector<int32_t>{0, 5, 6, 90});
  CHECK(longest(documents[0].keys) == 84);
  // Rows that lie one after another are one move, so that nothing is copied.
  CHECK(to_packed(documents[0].queries).moves == std::vector<RowMove>{{0, 0, 0}});

  // The second and third block share rows 4 and 5: two varlen_groups, the fourth fits beside the
  // second.
  const Block merged[] = {{{0, 2}, {0, 9}, 0, BlockKind::kFull, 0, true},
                          {{2, 6}, {3, 4}, 3, BlockKind::kFull, 0, true},
                          {{4, 8}, {0, 1}, 0, BlockKind::kFull, 0, true},
                          {{6, 7}, {8, 9}, 8, BlockKind::kFull, 0, true}};
  const std::vector<VarlenGroup> varlen_groups =
      make_varlen_groups({merged[0], merged[1], merged[2], merged[3]}, 0);
  REQUIRE(varlen_groups.size() == 2);
  CHECK(varlen_groups[0].queries == std::vector<Range>{{0, 2}, {2, 6}, {6, 7}});
  CHECK(varlen_groups[1].queries == std::vector<Range>{{4, 8}});
  CHECK(to_packed(varlen_groups[0].keys).moves ==
        std::vector<RowMove>{{0, 0, 0}, {9, 3, 9}, {10, 8, 10}});
  CHECK(from_packed(varlen_groups[0].queries).moves == std::vector<RowMove>{{0, 0, 0}});
  CHECK(gradient_parts(varlen_groups[0]).size() == 2);  // keys 3 and 8 are among 0 to 9 as well
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
