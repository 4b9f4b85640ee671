// The packing behind document-aware placement: which segments stay whole on which ring rank, and
// which are cut.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/layout/segment_forest.h"

namespace ringside::sp {

inline constexpr int64_t kCutOverAllRanks = -1;

// For each segment the ring rank that holds all of it, or kCutOverAllRanks. Trees are assigned
// whole, largest first, then moved and exchanged as long as that lowers the fullest rank in tokens
// and attended pairs; while the fullest is more than 4 % above the mean, the largest tree's root
// segment is cut and its subtrees are assigned for themselves. Ends at the latest with every
// segment cut. [num_segments]
std::vector<int64_t> owners_of_segments(const SegmentForest& forest, int64_t ring_size);

}  // namespace ringside::sp
