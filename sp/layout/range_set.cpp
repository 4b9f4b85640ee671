#include "sp/layout/range_set.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ringside::sp {

RangeSet::RangeSet(std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& r) { return r.empty(); });
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (const Range& range : ranges) {
    if (!ranges_.empty() && range.begin <= ranges_.back().end) {
      ranges_.back().end = std::max(ranges_.back().end, range.end);
    } else {
      ranges_.push_back(range);
    }
  }
  int64_t place = 0;
  for (const Range& range : ranges_) {
    begins_.push_back(place);
    place += range.size();
  }
}

RangeSet RangeSet::united(const RangeSet& other) const {
  std::vector<Range> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return RangeSet(std::move(all));
}

RangeSet RangeSet::intersected(const RangeSet& other) const {
  std::vector<Range> common;
  auto a = ranges_.begin();
  auto b = other.ranges_.begin();
  while (a != ranges_.end() && b != other.ranges_.end()) {
    const Range both{std::max(a->begin, b->begin), std::min(a->end, b->end)};
    if (!both.empty()) {
      common.push_back(both);
    }
    (a->end < b->end) ? static_cast<void>(++a) : static_cast<void>(++b);
  }
  return RangeSet(std::move(common));
}

int64_t RangeSet::place_of(int64_t value) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), value,
                                      [](int64_t v, const Range& r) { return v < r.begin; });
  if (after == ranges_.begin()) {
    return 0;
  }
  const auto i = after - ranges_.begin() - 1;
  return begins_[i] + std::min(value - ranges_[i].begin, ranges_[i].size());
}

std::vector<Range> RangeSet::places_of(const RangeSet& subset) const {
  std::vector<Range> places;
  for (const Range& range : subset.ranges_) {
    const Range place{place_of(range.begin), place_of(range.end)};
    if (place.size() != range.size()) {
      throw std::invalid_argument("RangeSet: [" + std::to_string(range.begin) + ", " +
                                  std::to_string(range.end) + ") is not in the set");
    }
    if (!places.empty() && places.back().end == place.begin) {
      places.back().end = place.end;
    } else {
      places.push_back(place);
    }
  }
  return places;
}

}  // namespace ringside::sp
