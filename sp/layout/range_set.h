// Set of indices as sorted ranges, with the rank of each member among all members (its "place").
#pragma once

#include <cstdint>
#include <vector>

#include "sp/layout/range.h"

namespace ringside::sp {

// Thread safety: immutable.
class RangeSet {
 public:
  RangeSet() = default;
  explicit RangeSet(std::vector<Range> ranges);  // any order, may overlap or be empty

  int64_t size() const { return begins_.empty() ? 0 : begins_.back() + ranges_.back().size(); }

  // Sorted, disjoint, not adjacent, not empty.
  const std::vector<Range>& ranges() const { return ranges_; }

  // Members of either set; members of both.
  RangeSet united(const RangeSet& other) const;
  RangeSet intersected(const RangeSet& other) const;

  // Number of members below `value`; for a member, its place.
  int64_t place_of(int64_t value) const;

  // The places of a subset's ranges; neighbouring ones are joined.
  // Throws: std::invalid_argument when it is not a subset.
  std::vector<Range> places_of(const RangeSet& subset) const;

 private:
  std::vector<Range> ranges_;
  std::vector<int64_t> begins_;  // place of each range's first member
};

}  // namespace ringside::sp
