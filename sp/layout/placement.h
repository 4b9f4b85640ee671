// Which ring rank holds which tokens: the balance of tokens and of attended pairs, and with them
// the speed, is decided here. Pure integers, the same on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/layout/range.h"
#include "sp/layout/segment_forest.h"

namespace ringside::sp {

// Consecutive tokens of one segment, [offsets.begin, offsets.end) of it.
struct TokenRun {
  int64_t segment = 0;
  Range offsets;
  bool operator==(const TokenRun&) const = default;
};

enum class Placement {
  // Whole documents, or trees of documents that share a prefix, on one rank each, so that they need
  // no keys and values
  // of others; those too large for that are opened: the root segment is cut in zigzag over all
  // ranks, what hangs
  // on it is placed for itself.
  kDocumentAware,
  // Every segment in 2R chunks whose sizes differ by at most one; rank r holds chunks r and 2R-1-r,
  // an early one and its
  // mirror, so that under a causal mask all ranks attend to about as many pairs. The remainders
  // rotate from segment to
  // segment, so many short segments still fill all ranks evenly.
  kZigzag,
  // R equal runs of the packed tokens. Balances tokens only: for comparison.
  kContiguous,
};

// The runs of each ring rank in packed order, adjacent ones of a segment joined. [ring_size];
// ring_size >= 1.
std::vector<std::vector<TokenRun>> place(const SegmentForest& forest, int64_t ring_size,
                                         Placement placement);

// How far the fullest rank is above the mean, in tokens and in attended pairs; 1 = balanced. An
// empty forest is balanced.
struct Balance {
  double tokens = 1.0;
  double pairs = 1.0;
};
Balance balance_of(const SegmentForest& forest, const std::vector<std::vector<TokenRun>>& shares);

}  // namespace ringside::sp
