// Places of the patches of images, and which patches attend to each other. Integers only.
//
// Patches come in the order of patch_rows(): merge x merge rows that follow each other are one
// token, tokens go through a frame row by row, frames and images follow each other.
// Source: transformers 5.9, vision_utils.py.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/images/image_processor.h"
#include "engine/layers/vision_config.h"

namespace ringside::engine {

// Adjacent segments of patches of one length. A patch attends to those of its segment.
struct SegmentRun {
  int64_t count = 0;
  int64_t length = 0;
  bool operator==(const SegmentRun&) const = default;
};

// The tables of the images of one pass.
struct PatchTables {
  int64_t patches = 0;
  // Row and column of each patch in its frame, in the order in which blocks have the patches.
  std::vector<int64_t> row_p;
  std::vector<int64_t> column_p;
  // With windows blocks have the tokens window by window: the token that comes n-th there, and the
  // place of each token there. Empty without.
  std::vector<int64_t> order_n;
  std::vector<int64_t> place_n;
  std::vector<SegmentRun> frames;
  std::vector<SegmentRun> windows;  // empty without

  // What the patches of a block attend within.
  const std::vector<SegmentRun>& segments(bool windowed) const {
    return windowed ? windows : frames;
  }
};

// Windows lie row by row in a frame; those at its right and lower edge may be smaller.
// Throws: std::invalid_argument for a grid that is empty or whose sides are no multiples of merge.
PatchTables patch_tables(const VisionConfig& config, std::span<const PatchGrid> grids);

}  // namespace ringside::engine
