// Set of integers stored as ranges: ids added nearly in order need little memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace ringside::bridge {

// Thread safety: none.
class IdSet {
 public:
  // Whether the id was added.
  bool contains(int64_t id) const {
    auto it = ranges_.upper_bound(id);
    return it != ranges_.begin() && id < std::prev(it)->second;
  }
  // Inserts [begin, end).
  void insert_range(int64_t begin, int64_t end) {
    if (begin >= end) {
      return;
    }
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin() && std::prev(it)->second >= begin) {
      --it;
      begin = it->first;
    }
    while (it != ranges_.end() && it->first <= end) {
      end = std::max(end, it->second);
      it = ranges_.erase(it);
    }
    ranges_[begin] = end;
  }
  // id < INT64_MAX. Inserting a member changes nothing.
  void insert(int64_t id) {
    if (contains(id)) {
      return;
    }
    int64_t begin = id;
    int64_t end = id + 1;
    auto next = ranges_.lower_bound(id);
    if (next != ranges_.end() && next->first == end) {
      end = next->second;
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin() && std::prev(next)->second == begin) {
      std::prev(next)->second = end;
    } else {
      ranges_[begin] = end;
    }
  }
  // Removes the id. Erasing another id changes nothing.
  void erase(int64_t id) {
    if (!contains(id)) {
      return;
    }
    auto it = std::prev(ranges_.upper_bound(id));
    const int64_t end = it->second;
    if (it->first == id) {
      ranges_.erase(it);
    } else {
      it->second = id;
    }
    if (id + 1 < end) {
      ranges_[id + 1] = end;
    }
  }
  // Erases [begin, end).
  void erase_range(int64_t begin, int64_t end) {
    if (begin >= end) {
      return;
    }
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin()) {
      --it;
    }
    while (it != ranges_.end() && it->first < end) {
      const auto [old_begin, old_end] = *it;
      if (old_end <= begin) {
        ++it;
        continue;
      }
      it = ranges_.erase(it);
      if (old_begin < begin) {
        ranges_[old_begin] = begin;
      }
      if (end < old_end) {
        ranges_[end] = old_end;
      }
    }
  }
  // begin -> end of each half-open range, in order.
  const std::map<int64_t, int64_t>& ranges() const { return ranges_; }

 private:
  std::map<int64_t, int64_t> ranges_;
};

}  // namespace ringside::bridge
