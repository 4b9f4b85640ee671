#include "engine/generate/row_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "engine/generate/page_pool.h"
#include "sp/lanes/arithmetic.h"
#include "sp/lanes/for_each_processor.h"

namespace ringside::engine {
namespace {

constexpr int kLanes = 16;
static_assert(kLanes == kPageTokens);
// Query heads that meet a key together: each key is read once for so many.
constexpr int kHeads = 4;

template <class Sum>
struct Vector {
  using Type [[gnu::vector_size(kLanes * sizeof(Sum))]] = Sum;
};
template <class Sum>
using Lanes = typename Vector<Sum>::Type;

template <class Element, class Sum>
[[gnu::always_inline]] inline void load(const Element* from, Lanes<Sum>& to) {
  if constexpr (std::is_same_v<Element, Sum>) {
    std::memcpy(&to, from, sizeof(to));
  } else {
    using Words [[gnu::vector_size(kLanes * sizeof(uint16_t))]] = uint16_t;
    using Wide [[gnu::vector_size(kLanes * sizeof(uint32_t))]] = uint32_t;
    Words words;
    std::memcpy(&words, from, sizeof(words));
    const Wide wide = __builtin_convertvector(words, Wide) << 16;
    std::memcpy(&to, &wide, sizeof(to));
  }
}

[[gnu::always_inline]] inline float widened(float x) { return x; }
[[gnu::always_inline]] inline double widened(double x) { return x; }
[[gnu::always_inline]] inline float widened(uint16_t x) { return sp::widened(x); }
[[gnu::always_inline]] inline void round_to(float x, float& to) { to = x; }
[[gnu::always_inline]] inline void round_to(double x, double& to) { to = x; }
[[gnu::always_inline]] inline void round_to(float x, uint16_t& to) { to = sp::rounded_to_bf16(x); }

// Lanes of a row's places, whole pages.
[[gnu::always_inline]] inline int64_t padded(int64_t end) {
  return (end + kLanes - 1) / kLanes * kLanes;
}

template <class Element, class Sum>
[[gnu::always_inline]] inline void write_new(const RowOfHead<Element, Sum>& row) {
  const int64_t place = row.end - 1;
  const int64_t page = row.pages[place / kLanes] * row.page_stride;
  for (int64_t d = 0; d < row.dim; ++d) {
    row.keys[page + d * kLanes + place % kLanes] = row.new_key_D[d];
  }
  std::copy_n(row.new_value_D, row.dim, row.values + page + place % kLanes * row.dim);
}

// Asks for the page behind the one at `first`, which lies anywhere in memory.
template <class Element, class Sum>
[[gnu::always_inline]] inline void prefetch_next(const RowOfHead<Element, Sum>& row,
                                                 const Element* pages, int64_t first) {
  constexpr int64_t kLine = 64 / sizeof(Element);
  if (first + kLanes < row.end) {
    const Element* next = pages + row.pages[first / kLanes + 1] * row.page_stride;
    for (int64_t i = 0; i < row.dim * kLanes; i += kLine) {
      __builtin_prefetch(next + i);
    }
  }
}

// scores[h][place] = q_h . key, for kHeads queries [kHeads, D] that are scaled already.
template <class Element, class Sum>
[[gnu::always_inline]] inline void score(const RowOfHead<Element, Sum>& row, const Sum* q,
                                         Sum* scores, int64_t stride) {
  for (int64_t first = row.begin / kLanes * kLanes; first < row.end; first += kLanes) {
    prefetch_next(row, static_cast<const Element*>(row.keys), first);
    const Element* key = row.keys + row.pages[first / kLanes] * row.page_stride;
    Lanes<Sum> sums[kHeads] = {};
    for (int64_t d = 0; d < row.dim; ++d) {
      Lanes<Sum> keys;
      load<Element, Sum>(key + d * kLanes, keys);
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) {
        sums[h] += q[h * row.dim + d] * keys;
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      std::memcpy(scores + h * stride + first, &sums[h], sizeof(sums[h]));
    }
  }
}

// Exponentials of the scores, shifted by the highest; returns their sum with the sink's.
template <class Sum>
[[gnu::always_inline]] inline Sum exponentials(Sum* scores, int64_t first, int64_t end,
                                               const Sum* sink) {
  Sum highest = sink == nullptr ? -std::numeric_limits<Sum>::infinity() : *sink;
  for (int64_t i = first; i < end; ++i) {
    highest = std::max(highest, scores[i]);
  }
  Sum lanes[kLanes] = {};
  for (int64_t i = first; i < end; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      Sum& value = scores[i + lane];
      if constexpr (std::is_same_v<Sum, float>) {
        value = sp::exp_of(value - highest);
      } else {
        value = std::exp(value - highest);
      }
      lanes[lane] += value;
    }
  }
  Sum total = sink == nullptr ? Sum(0) : std::exp(*sink - highest);
  for (const Sum lane : lanes) {
    total += lane;
  }
  return total;
}

// out[h][d] of kVectors vectors of values from d on: the probs' sum of values, divided by totals.
template <int kVectors, class Element, class Sum>
[[gnu::always_inline]] inline void add_values(const RowOfHead<Element, Sum>& row, const Sum* scores,
                                              int64_t stride, const Sum* totals, int64_t d,
                                              int64_t heads, Element* out) {
  Lanes<Sum> sums[kHeads][kVectors] = {};
  for (int64_t first = row.begin / kLanes * kLanes; first < row.end; first += kLanes) {
    if (d == 0) {
      prefetch_next(row, static_cast<const Element*>(row.values), first);
    }
    const Element* page = row.values + row.pages[first / kLanes] * row.page_stride + d;
    for (int64_t place = std::max(first, row.begin); place < std::min(first + kLanes, row.end);
         ++place) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        Lanes<Sum> values;
        load<Element, Sum>(page + (place - first) * row.dim + v * kLanes, values);
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) {
          sums[h][v] += scores[h * stride + place] * values;
        }
      }
    }
  }
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < kVectors * kLanes; ++i) {
      round_to(sums[h][i / kLanes][i % kLanes] / totals[h], out[h * row.dim + d + i]);
    }
  }
}

// The same for the last elements of a head whose size is no multiple of kLanes.
template <class Element, class Sum>
[[gnu::always_inline]] inline void add_value(const RowOfHead<Element, Sum>& row, const Sum* scores,
                                             int64_t stride, const Sum* totals, int64_t d,
                                             int64_t heads, Element* out) {
  for (int64_t h = 0; h < heads; ++h) {
    Sum sum = 0;
    for (int64_t place = row.begin; place < row.end; ++place) {
      sum += scores[h * stride + place] *
             widened(row.values[row.pages[place / kLanes] * row.page_stride +
                                place % kLanes * row.dim + d]);
    }
    round_to(sum / totals[h], out[h * row.dim + d]);
  }
}

template <class Element, class Sum>
[[gnu::always_inline]] inline void attend(const RowOfHead<Element, Sum>& row, Sum* memory) {
  write_new(row);
  const int64_t stride = padded(row.end);
  Sum* q = memory;
  Sum* scores = memory + kHeads * row.dim;
  for (int64_t h0 = 0; h0 < row.queries; h0 += kHeads) {
    const int64_t heads = std::min<int64_t>(kHeads, row.queries - h0);
    for (int64_t h = 0; h < kHeads; ++h) {  // a head that is not there repeats the last
      const Element* from = row.q_gD + (h0 + std::min(h, heads - 1)) * row.dim;
      for (int64_t d = 0; d < row.dim; ++d) {
        q[h * row.dim + d] = widened(from[d]) * row.scale;
      }
    }
    score(row, q, scores, stride);
    Sum totals[kHeads] = {};
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t first = row.begin / kLanes * kLanes;
      Sum* of_head = scores + h * stride;
      const Sum hidden = -std::numeric_limits<Sum>::infinity();
      std::fill(of_head + first, of_head + row.begin, hidden);
      std::fill(of_head + row.end, of_head + stride, hidden);
      totals[h] = exponentials(of_head, first, stride,
                               row.sinks_g == nullptr ? nullptr : row.sinks_g + h0 + h);
    }
    Element* out = row.out_gD + h0 * row.dim;
    int64_t d = 0;
    for (; d + 2 * kLanes <= row.dim; d += 2 * kLanes) {
      add_values<2>(row, scores, stride, totals, d, heads, out);
    }
    for (; d + kLanes <= row.dim; d += kLanes) {
      add_values<1>(row, scores, stride, totals, d, heads, out);
    }
    for (; d < row.dim; ++d) {
      add_value(row, scores, stride, totals, d, heads, out);
    }
  }
}

}  // namespace

int64_t row_memory(int64_t dim, int64_t end) { return kHeads * (dim + padded(end)); }

RINGSIDE_FOR_EACH_PROCESSOR
void attend_row(const RowOfHead<float, float>& row, float* memory) { attend(row, memory); }

RINGSIDE_FOR_EACH_PROCESSOR
void attend_row(const RowOfHead<uint16_t, float>& row, float* memory) { attend(row, memory); }

RINGSIDE_FOR_EACH_PROCESSOR
void attend_row(const RowOfHead<double, double>& row, double* memory) { attend(row, memory); }

}  // namespace ringside::engine
