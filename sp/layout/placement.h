// Placement of tokens on ring ranks. It decides the balance of tokens and of attended pairs, and so
// the speed. Integers only, the same on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/layout/range.h"
#include "sp/layout/segment_forest.h"

namespace ringside::sp {

// Consecutive tokens [offsets.begin, offsets.end) of one segment.
struct TokenRun {
  int64_t segment = 0;
  Range offsets;
  bool operator==(const TokenRun&) const = default;
};

enum class Placement {
  // Whole documents, or whole trees of documents that share a prefix, on one rank each, so they
  // need no keys and values of other ranks. A tree that is too large is opened: its root segment is
  // cut in zigzag over all ranks and its subtrees are placed separately.
  kDocumentAware,
  // Every segment in 2R chunks whose sizes differ by at most one. Rank r holds chunks r and 2R-1-r,
  // so under a causal mask all ranks attend to about as many pairs. The remainders rotate from
  // segment to segment, so many short segments still fill all ranks evenly.
  kZigzag,
  // R equal runs of the packed tokens. Balances tokens only; for comparison.
  kContiguous,
};

// The runs of each ring rank in packed order; adjacent runs of a segment are joined.
// Shapes: [ring_size], ring_size >= 1.
std::vector<std::vector<TokenRun>> place(const SegmentForest& forest, int64_t ring_size,
                                         Placement placement);

// Maximum over mean of the ranks' tokens and attended pairs; 1 = balanced. An empty forest is
// balanced.
struct Balance {
  double tokens = 1.0;
  double pairs = 1.0;
};
// Of shares of a forest, one list of runs a ring rank; 1 when there is no token.
Balance balance_of(const SegmentForest& forest, const std::vector<std::vector<TokenRun>>& shares);

}  // namespace ringside::sp
