// First-fit allocator of offsets in a fixed range; neighbouring free ranges are merged. No torch.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <optional>

namespace ringside::standin {

// Thread safety: none.
class RangeHeap {
 public:
  // Offsets in [0, capacity), multiples of `alignment`.
  RangeHeap(size_t capacity, size_t alignment) : alignment_(alignment) { free_[0] = capacity; }

  // `size` rounded up to a multiple of the alignment.
  size_t rounded(size_t size) const { return (size + alignment_ - 1) / alignment_ * alignment_; }

  // size: of rounded(). Nothing when no free range is large enough.
  std::optional<size_t> allocate(size_t size) {
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      const auto [offset, length] = *range;
      if (length >= size) {
        free_.erase(range);
        if (length > size) {
          free_[offset + size] = length - size;
        }
        return offset;
      }
    }
    return std::nullopt;
  }

  // `offset` of allocate() with the same size.
  void free(size_t offset, size_t size) {
    auto range = free_.emplace(offset, size).first;
    if (const auto next = std::next(range);
        next != free_.end() && range->first + range->second == next->first) {
      range->second += next->second;
      free_.erase(next);
    }
    if (range != free_.begin()) {
      if (const auto before = std::prev(range); before->first + before->second == range->first) {
        before->second += range->second;
        free_.erase(range);
      }
    }
  }

 private:
  size_t alignment_;
  std::map<size_t, size_t> free_;  // offset -> length
};

}  // namespace ringside::standin
