// Run of consecutive rows that a row kernel moves. Plain data, shared by host code and .cu files.
#pragma once

#include <cstdint>

namespace ringside::sp {

struct RowMove {
  int64_t first = 0;  // rows moved by all earlier moves: the index at which this move's work begins
  int64_t from = 0;   // first row in the source
  int64_t to = 0;     // first row in the destination
};

inline bool operator==(const RowMove& a, const RowMove& b) {
  return a.first == b.first && a.from == b.from && a.to == b.to;
}

}  // namespace ringside::sp
