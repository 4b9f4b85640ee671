#include "sp/attention/tile_math.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "sp/lanes/arithmetic.h"
#include "sp/lanes/for_each_processor.h"

namespace ringside::sp {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// -inf - -inf is NaN: a query that has seen no key is shifted by 0.
[[gnu::always_inline]] inline float finite_or_zero(float x) { return x == kHidden ? 0.0f : x; }

constexpr int kLanes = 16;
using Lanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;

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

// As transpose(), of 16 x 16.
[[gnu::always_inline]] inline void transpose_square(const float* from, int64_t from_stride,
                                                    float scale, float* to, int64_t to_stride) {
  constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
  Lanes rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    std::memcpy(&rows[i], from + i * from_stride, sizeof(Lanes));
  }
  exchange<1>(rows, kAll);
  exchange<2>(rows, kAll);
  exchange<4>(rows, kAll);
  exchange<8>(rows, kAll);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    rows[i] *= scale;
    std::memcpy(to + i * to_stride, &rows[i], sizeof(Lanes));
  }
}

}  // namespace

RINGSIDE_FOR_EACH_PROCESSOR
void softmax_step(float* __restrict products_Kw, int64_t keys, int64_t width, float scale,
                  const OnlineSoftmax& state) {
  float* __restrict highest = state.highest_w;
  float* __restrict correction = state.correction_w;
  std::copy_n(highest, width, correction);
  for (int64_t k = 0; k < keys; ++k) {
    const float* __restrict products = products_Kw + k * width;
    for (int64_t c = 0; c < width; ++c) {
      highest[c] = std::max(highest[c], products[c]);
    }
  }
  // A sum of its own for the tile: over thousands of keys, one would lose digits.
  float sum[kMaxWidth] = {};
  for (int64_t k = 0; k < keys; ++k) {
    float* __restrict products = products_Kw + k * width;
    for (int64_t c = 0; c < width; ++c) {
      const float p = exp_of(scale * (products[c] - finite_or_zero(highest[c])));
      products[c] = p;
      sum[c] += p;
    }
  }
  for (int64_t c = 0; c < width; ++c) {
    correction[c] = exp_of(scale * (correction[c] - finite_or_zero(highest[c])));
    state.sum_w[c] = state.sum_w[c] * correction[c] + sum[c];
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
void softmax_backward(float* __restrict products_Kw, float* __restrict dp_Kw, int64_t keys,
                      int64_t width, float scale, const float* __restrict lse_w,
                      const float* __restrict delta_w) {
  for (int64_t k = 0; k < keys; ++k) {
    float* __restrict products = products_Kw + k * width;
    float* __restrict dp = dp_Kw + k * width;
    for (int64_t c = 0; c < width; ++c) {
      const float p = exp_of(scale * products[c] - lse_w[c]);
      products[c] = p;
      dp[c] = p * (dp[c] - delta_w[c]);
    }
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
void scale_columns(float* __restrict tile_Dw, int64_t rows, int64_t width,
                   const float* __restrict factor_w) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < width; ++c) {
      tile_Dw[row * width + c] *= factor_w[c];
    }
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
void row_products(const float* __restrict a, int64_t a_stride, const float* __restrict b,
                  int64_t b_stride, int64_t rows, int64_t head_dim, float* __restrict out_n) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* __restrict x = a + i * a_stride;
    const float* __restrict y = b + i * b_stride;
    float lanes[kLanes] = {};
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += x[d + lane] * y[d + lane];
      }
    }
    for (; d < head_dim; ++d) {
      lanes[0] += x[d] * y[d];
    }
    out_n[i] = std::accumulate(lanes, lanes + kLanes, 0.0f);
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
void transpose(const float* __restrict from, int64_t from_stride, int64_t rows, int64_t columns,
               float scale, float* __restrict to, int64_t to_stride) {
  const int64_t square_rows = rows / kLanes * kLanes, square_columns = columns / kLanes * kLanes;
  for (int64_t r = 0; r < square_rows; r += kLanes) {
    for (int64_t c = 0; c < square_columns; c += kLanes) {
      transpose_square(from + r * from_stride + c, from_stride, scale, to + c * to_stride + r,
                       to_stride);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = r < square_rows ? square_columns : 0; c < columns; ++c) {
      to[c * to_stride + r] = scale * from[r * from_stride + c];
    }
  }
}

}  // namespace ringside::sp
