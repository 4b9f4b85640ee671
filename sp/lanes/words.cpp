#include "sp/lanes/words.h"

#include <cstring>
#include <utility>

#include "sp/lanes/for_each_processor.h"

namespace ringside::sp {
namespace {

constexpr int kLanes = 16;
using Lanes [[gnu::vector_size(kLanes * sizeof(uint32_t))]] = uint32_t;

// Exchanges the lanes of rows i and i + kDistance whose numbers differ from the row's in that bit.
template <int kDistance, int... kLane>
[[gnu::always_inline]] inline void exchange(Lanes* rows, std::integer_sequence<int, kLane...>) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kDistance) == 0) {
      const Lanes a = rows[i], b = rows[i + kDistance];
      rows[i] = __builtin_shufflevector(
          a, b, ((kLane & kDistance) == 0 ? kLane : kLane - kDistance + kLanes)...);
      rows[i + kDistance] = __builtin_shufflevector(
          a, b, ((kLane & kDistance) == 0 ? kLane + kDistance : kLane + kLanes)...);
    }
  }
}

[[gnu::always_inline]] inline void transpose_square(const uint32_t* from, int64_t stride,
                                                    uint32_t* to, int64_t to_stride) {
  constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
  Lanes rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    std::memcpy(&rows[i], from + i * stride, sizeof(Lanes));
  }
  exchange<8>(rows, kAll);
  exchange<4>(rows, kAll);
  exchange<2>(rows, kAll);
  exchange<1>(rows, kAll);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    std::memcpy(to + i * to_stride, &rows[i], sizeof(Lanes));
  }
}

}  // namespace

RINGSIDE_FOR_EACH_PROCESSOR
void transpose_words(const WordMatrix& from, uint32_t* to, int64_t to_stride) {
  const int64_t whole_rows = from.rows / kLanes * kLanes;
  const int64_t whole_columns = from.columns / kLanes * kLanes;
  for (int64_t c = 0; c < whole_columns; c += kLanes) {
    for (int64_t r = 0; r < whole_rows; r += kLanes) {
      transpose_square(from.first + r * from.stride + c, from.stride, to + c * to_stride + r,
                       to_stride);
    }
  }
  for (int64_t r = 0; r < from.rows; ++r) {
    for (int64_t c = r < whole_rows ? whole_columns : 0; c < from.columns; ++c) {
      to[c * to_stride + r] = from.first[r * from.stride + c];
    }
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
void interleave(const uint16_t* even, const uint16_t* odd, int64_t count, uint16_t* to) {
  for (int64_t c = 0; c < count; ++c) {
    to[2 * c] = even[c];
    to[2 * c + 1] = odd[c];
  }
}

}  // namespace ringside::sp
