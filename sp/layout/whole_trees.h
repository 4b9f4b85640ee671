// Assignment of segments to ring ranks in document-aware placement: whole on one rank, or cut over
// all.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/layout/segment_forest.h"

namespace ringside::sp {

inline constexpr int64_t kCutOverAllRanks = -1;

// The ring rank that holds each whole segment, or kCutOverAllRanks. Trees are assigned whole,
// largest first. They are then moved and exchanged while that lowers the maximum over ranks of
// tokens and attended pairs. While the maximum is more than 4 % above the mean, the root segment of
// the largest tree is cut and its subtrees are assigned separately. Ends at the latest when every
// segment is cut. [num_segments]
std::vector<int64_t> owners_of_segments(const SegmentForest& forest, int64_t ring_size);

}  // namespace ringside::sp
