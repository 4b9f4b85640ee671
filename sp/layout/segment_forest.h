// Forest of segments: the documents of a micro-batch, in which tokens shared by several documents
// exist once. A plain document is a root without children. Completions of one prompt are children
// of the prompt's segment, and so on to any depth. A token attends to itself, to the tokens before
// it in its segment, and to all ancestors of its segment. Integers only, the same on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/layout/range.h"

namespace ringside::sp {

struct Segment {
  int64_t parent = -1;  // index of an earlier segment, -1 for a root
  int64_t length = 0;   // tokens, >= 0
  bool operator==(const Segment&) const = default;
};

// Segments are in depth-first order, and tokens are packed in that order ("packed index"). A
// segment's descendants follow it without a gap.
// Throws: std::out_of_range, every function, on a segment that does not exist.
// Thread safety: immutable.
class SegmentForest {
 public:
  // Throws: std::invalid_argument, naming the segment, on a negative length or a parent that is not
  // on the path of the segment before.
  explicit SegmentForest(std::vector<Segment> segments);

  // One root per document.
  // Throws: std::invalid_argument on a negative length.
  static SegmentForest of_documents(const std::vector<int64_t>& lengths);

  int64_t num_segments() const { return static_cast<int64_t>(segments_.size()); }
  int64_t num_tokens() const { return packed_begin_.back(); }
  // Tokens of a segment; the segment that it continues, or -1 for a root.
  int64_t length(int64_t segment) const { return segments_.at(segment).length; }
  int64_t parent(int64_t segment) const { return segments_.at(segment).parent; }

  // Position of the segment's first token in every document that contains it.
  int64_t first_position(int64_t segment) const { return first_position_.at(segment); }

  // Packed indices of the segment's tokens.
  Range packed(int64_t segment) const {
    return {packed_begin_.at(segment), packed_begin_.at(segment + 1)};
  }

  // End of the segment's descendants, as a segment and as a packed index.
  int64_t subtree_end(int64_t segment) const { return subtree_end_.at(segment); }
  int64_t packed_subtree_end(int64_t segment) const {
    return packed_begin_.at(subtree_end(segment));
  }

  // Query-key pairs of the tokens at `offsets` of a segment, per head. A token attends to at most
  // `window` tokens, itself included; 0 = to all before it.
  int64_t attended_pairs(int64_t segment, Range offsets, int64_t window = 0) const;

 private:
  std::vector<Segment> segments_;
  std::vector<int64_t> first_position_;
  std::vector<int64_t> packed_begin_;  // [num_segments + 1]
  std::vector<int64_t> subtree_end_;
};

}  // namespace ringside::sp
