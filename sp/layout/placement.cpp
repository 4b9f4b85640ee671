#include "sp/layout/placement.h"

#include <algorithm>

#include "sp/layout/whole_trees.h"

namespace ringside::sp {
namespace {

using Shares = std::vector<std::vector<TokenRun>>;

void append_run(std::vector<TokenRun>& share, int64_t segment, Range offsets) {
  if (offsets.empty()) {
    return;
  }
  if (!share.empty() && share.back().segment == segment &&
      share.back().offsets.end == offsets.begin) {
    share.back().offsets.end = offsets.end;
    return;
  }
  share.push_back({segment, offsets});
}

// Cuts segments into zigzag chunks, one segment after another, and keeps the position of the next
// remainder.
class ZigzagCutter {
 public:
  explicit ZigzagCutter(int64_t ring_size) : num_chunks_(2 * ring_size) {}

  void cut(int64_t segment, int64_t length, Shares& shares) {
    const int64_t base = length / num_chunks_;
    const int64_t remainder = length % num_chunks_;
    int64_t begin = 0;
    for (int64_t c = 0; c < num_chunks_; ++c) {
      const bool larger = (c - first_larger_ + num_chunks_) % num_chunks_ < remainder;
      const int64_t end = begin + base + (larger ? 1 : 0);
      append_run(shares[std::min(c, num_chunks_ - 1 - c)], segment, {begin, end});
      begin = end;
    }
    first_larger_ = (first_larger_ + length) % num_chunks_;
  }

 private:
  int64_t num_chunks_;
  int64_t first_larger_ = 0;
};

Shares place_contiguous(const SegmentForest& forest, int64_t ring_size) {
  Shares shares(ring_size);
  for (int64_t r = 0; r < ring_size; ++r) {
    const Range part = even_part(forest.num_tokens(), ring_size, r);
    for (int64_t s = 0; s < forest.num_segments(); ++s) {
      const Range packed = forest.packed(s);
      append_run(shares[r], s,
                 {std::max(packed.begin, part.begin) - packed.begin,
                  std::min(packed.end, part.end) - packed.begin});
    }
  }
  return shares;
}

}  // namespace

std::vector<std::vector<TokenRun>> place(const SegmentForest& forest, int64_t ring_size,
                                         Placement placement) {
  if (placement == Placement::kContiguous) {
    return place_contiguous(forest, ring_size);
  }
  const std::vector<int64_t> owner =
      placement == Placement::kDocumentAware
          ? owners_of_segments(forest, ring_size)
          : std::vector<int64_t>(forest.num_segments(), kCutOverAllRanks);
  Shares shares(ring_size);
  ZigzagCutter zigzag(ring_size);
  for (int64_t s = 0; s < forest.num_segments(); ++s) {
    if (owner[s] == kCutOverAllRanks) {
      zigzag.cut(s, forest.length(s), shares);
    } else {
      append_run(shares[owner[s]], s, {0, forest.length(s)});
    }
  }
  return shares;
}

Balance balance_of(const SegmentForest& forest, const std::vector<std::vector<TokenRun>>& shares) {
  int64_t all_tokens = 0, all_pairs = 0, most_tokens = 0, most_pairs = 0;
  for (const auto& share : shares) {
    int64_t tokens = 0, pairs = 0;
    for (const TokenRun& run : share) {
      tokens += run.offsets.size();
      pairs += forest.attended_pairs(run.segment, run.offsets);
    }
    all_tokens += tokens;
    all_pairs += pairs;
    most_tokens = std::max(most_tokens, tokens);
    most_pairs = std::max(most_pairs, pairs);
  }
  if (all_tokens == 0) {
    return {};
  }
  const auto ranks = static_cast<double>(shares.size());
  return {ranks * static_cast<double>(most_tokens) / static_cast<double>(all_tokens),
          ranks * static_cast<double>(most_pairs) / static_cast<double>(all_pairs)};
}

}  // namespace ringside::sp
