// Half-open range of indices.
#pragma once

#include <cstdint>
#include <vector>

namespace ringside::sp {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  bool operator==(const Range&) const = default;
};

// Part `index` of `total` items cut into `parts` contiguous parts whose sizes differ by at most
// one. The first total % parts parts are the larger ones. Any total >= 0, any parts >= 1.
inline Range even_part(int64_t total, int64_t parts, int64_t index) {
  const int64_t base = total / parts;
  const int64_t larger = total % parts;
  const int64_t begin = index * base + (index < larger ? index : larger);
  return {begin, begin + base + (index < larger ? 1 : 0)};
}

// Sum of the sizes of all ranges.
inline int64_t total_size(const std::vector<Range>& ranges) {
  int64_t sum = 0;
  for (const Range& range : ranges) {
    sum += range.size();
  }
  return sum;
}

}  // namespace ringside::sp
