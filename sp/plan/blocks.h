// Blocks of the attention matrix that a rank computes, derived from the layout. Shares are in the
// forest's depth-first order. So the queries outside a run of keys that attend to it (later tokens
// of its segment, all tokens of the segment's descendants) are one contiguous range of any rank's
// share. Integers only.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/layout/sequence_layout.h"

namespace ringside::sp {

// kFull: every query attends to every key. kCausal: query and key are the same tokens. kWindowed:
// the i-th query attends to the j-th key iff 0 <= i + offset - j < window; every query attends to
// at least one key.
enum class BlockKind { kFull, kCausal, kWindowed };

// A rectangle of the attention matrix in indices of the layout.
struct Rectangle {
  Range query;  // share indices of this rank's ring share
  Range key;    // packed indices, within one segment
  BlockKind kind = BlockKind::kFull;
  int64_t offset = 0;  // kWindowed: position of the first query - position of the first key
  bool operator==(const Rectangle&) const = default;
};

// The runs of a ring share with their ranges in the share and in the packing.
class PlacedShare {
 public:
  // The share of one ring rank.
  // Throws: std::out_of_range when there is no such rank.
  PlacedShare(const SequenceLayout& layout, int64_t ring_rank);

  // Consecutive tokens of one segment, in packed and in share indices.
  struct Run {
    int64_t segment = 0;
    Range packed;
    Range share;
  };
  const std::vector<Run>& runs() const { return runs_; }

  // Share indices whose packed index lies in `packed`.
  Range rows_in(Range packed) const { return {first_row(packed.begin), first_row(packed.end)}; }

  // The share's last packed index below `packed`; -1 if there is none.
  int64_t last_packed_below(int64_t packed) const;

 private:
  int64_t first_row(int64_t packed) const;  // first share index at or after a packed index

  std::vector<Run> runs_;
};

// Attention of a share to the keys `key` (packed indices within `segment`) by queries outside them.
// At most one rectangle without a window (window 0), one per query run with it. Ordered by query.
std::vector<Rectangle> attend_to_run(const SegmentForest& forest, const PlacedShare& queries,
                                     int64_t segment, Range key, int64_t window);

// Attention of each run to itself: a causal square, or windowed tiles of a run longer than the
// window.
std::vector<Rectangle> attend_to_self(const PlacedShare& queries, int64_t window);

// Attention of each run to earlier tokens of its own segment, on whatever rank.
std::vector<Rectangle> attend_to_segment(const SegmentForest& forest, const PlacedShare& queries,
                                         int64_t window);

// Query-key pairs of a rectangle.
int64_t pairs_of(const Rectangle& rectangle, int64_t window);

}  // namespace ringside::sp
