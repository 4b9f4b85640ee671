// Runs of consecutive rows that a row kernel moves or sums. Plain data, shared by host code and .cu
// files.
#pragma once

#include <cstdint>

namespace ringside::sp {

// Row from + i of the source goes to row to + i of the destination.
struct RowMove {
  int64_t first = 0;  // rows moved by all earlier moves: the index at which this move's work begins
  int64_t from = 0;   // first row in the source
  int64_t to = 0;     // first row in the destination
};

// Row to + i of the destination gets the sum of the rows from + i of its sources, which are the
// entries [sources_begin, sources_end) of a list of `from`s.
struct RowSum {
  int64_t first = 0;  // as in RowMove
  int64_t to = 0;
  int64_t sources_begin = 0;
  int64_t sources_end = 0;
};

inline bool operator==(const RowMove& a, const RowMove& b) {
  return a.first == b.first && a.from == b.from && a.to == b.to;
}

}  // namespace ringside::sp
