// Set of addresses as disjoint ranges. No torch.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

#include "tests/support/standin/address.h"

namespace ringside::standin {

class Intervals {
 public:
  // Adds the range; an empty one changes nothing.
  void add(Bytes bytes) {
    if (bytes.empty()) {
      return;
    }
    auto next = ends_.upper_bound(bytes.begin);
    if (next != ends_.begin() && std::prev(next)->second >= bytes.begin) {
      --next;
    }
    while (next != ends_.end() && next->first <= bytes.end) {
      bytes = {std::min(bytes.begin, next->first), std::max(bytes.end, next->second)};
      next = ends_.erase(next);
    }
    ends_[bytes.begin] = bytes.end;
  }

  // Whether every byte is in the set.
  bool covers(Bytes bytes) const {
    if (bytes.empty()) {
      return true;
    }
    const auto next = ends_.upper_bound(bytes.begin);
    return next != ends_.begin() && std::prev(next)->second >= bytes.end;
  }

  // The ranges of this set inside `from`, moved to begin at `to`.
  Intervals moved(Bytes from, uintptr_t to) const {
    Intervals result;
    for (const auto& [begin, end] : ends_) {
      const Bytes part{std::max(begin, from.begin), std::min(end, from.end)};
      result.add({part.begin - from.begin + to, part.end - from.begin + to});
    }
    return result;
  }

 private:
  std::map<uintptr_t, uintptr_t> ends_;  // begin -> end
};

}  // namespace ringside::standin
