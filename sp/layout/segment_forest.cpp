#include "sp/layout/segment_forest.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringside::sp {

SegmentForest::SegmentForest(std::vector<Segment> segments)
    : segments_(std::move(segments)), packed_begin_{0} {
  std::vector<int64_t> path;  // from the root to the previous segment
  subtree_end_.assign(segments_.size(), num_segments());
  for (int64_t s = 0; s < num_segments(); ++s) {
    const Segment& segment = segments_[s];
    if (segment.length < 0) {
      throw std::invalid_argument("segment " + std::to_string(s) + " has length " +
                                  std::to_string(segment.length));
    }
    while (!path.empty() && path.back() != segment.parent) {
      subtree_end_[path.back()] = s;
      path.pop_back();
    }
    if (path.empty() && segment.parent != -1) {
      throw std::invalid_argument("segment " + std::to_string(s) + " has parent " +
                                  std::to_string(segment.parent) +
                                  ", which is not on the path of the segment before it");
    }
    first_position_.push_back(
        path.empty() ? 0 : first_position_[path.back()] + segments_[path.back()].length);
    packed_begin_.push_back(packed_begin_.back() + segment.length);
    path.push_back(s);
  }
}

SegmentForest SegmentForest::of_documents(const std::vector<int64_t>& lengths) {
  std::vector<Segment> segments;
  for (const int64_t length : lengths) {
    segments.push_back({-1, length});
  }
  return SegmentForest(std::move(segments));
}

int64_t SegmentForest::attended_pairs(int64_t segment, Range offsets, int64_t window) const {
  const int64_t n = offsets.size();
  const int64_t first = first_position(segment) + offsets.begin + 1;  // pairs of the first token
  const int64_t last = first + n - 1;
  const int64_t growing =
      window == 0 ? n : std::max<int64_t>(0, std::min(last, window) - first + 1);
  return growing * (2 * first + growing - 1) / 2 + (n - growing) * window;
}

}  // namespace ringside::sp
