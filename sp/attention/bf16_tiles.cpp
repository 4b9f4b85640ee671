#include "sp/attention/bf16_tiles.h"

#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "sp/lanes/arithmetic.h"
#include "sp/lanes/for_each_processor.h"
#include "sp/lanes/words.h"

namespace ringside::sp {
namespace {

constexpr int64_t kMaxHeadDim = 256;

bool finds_kernel() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512bf16")) {
    return false;
  }
  try {
    const Bf16Word a[2] = {}, b[2 * 16] = {};
    float c[16];
    product({1, 16, 2, 2}, false, a, b, c);
    end_products();
    return true;
  } catch (const std::exception&) {  // LibTorch's or oneDNN's
    return false;
  }
#else
  return false;
#endif
}

const uint32_t* pairs_of(const Bf16Word* row) { return reinterpret_cast<const uint32_t*>(row); }
uint32_t* pairs_of(Bf16Word* row) { return reinterpret_cast<uint32_t*>(row); }

}  // namespace

bool has_bf16_tiles(int64_t head_dim) {
  static const bool found = finds_kernel();
  return found && head_dim % 2 == 0 && head_dim <= kMaxHeadDim;
}

void end_products() { at::native::cpublas::brgemm_release(/*is_vnni=*/true); }

Bf16Rows bf16_rows(const at::Tensor& x_BnHD, int64_t block, int64_t head) {
  return {static_cast<const Bf16Word*>(x_BnHD.const_data_ptr()) + block * x_BnHD.stride(0) +
              head * x_BnHD.stride(2),
          x_BnHD.stride(1), x_BnHD.size(1), x_BnHD.size(3)};
}

void pack_rows(const Bf16Rows& x, Bf16Word* to) {
  for (int64_t row = 0; row < x.count; ++row) {
    std::copy_n(x.row(row), x.head_dim, to + row * x.head_dim);
  }
}

void pair_rows(const Bf16Rows& x, const Tile& tile, Bf16Word* to) {
  const int64_t d = x.head_dim;
  for (int64_t row = 0; row < tile.count; row += 2) {
    const Bf16Word* const even = x.row(tile.begin + row);
    Bf16Word* const pair = to + row * d;
    if (row + 1 < tile.count) {
      interleave(even, even + x.stride, d, pair);
      continue;
    }
    for (int64_t i = 0; i < d; ++i) {
      pair[2 * i] = even[i];
      pair[2 * i + 1] = 0;
    }
  }
  const int64_t done = tile.count + tile.count % 2;
  std::fill(to + done * d, to + tile.width() * d, Bf16Word{0});
}

void pack_columns(const Bf16Rows& x, const Tile& tile, Bf16Word* to) {
  // Rows in pairs become words, whose transpose has the rows' elements side by side again.
  Bf16Word paired[Tile::kRows * kMaxHeadDim];
  pair_rows(x, tile, paired);
  const int64_t words = tile.width() / 2;
  transpose_words({pairs_of(paired), x.head_dim, words, x.head_dim}, pairs_of(to), words);
}

void pair_columns(const Bf16Rows& x, const Tile& tile, Bf16Word* to) {
  const int64_t words = x.head_dim / 2, width = tile.width();
  transpose_words({pairs_of(x.row(tile.begin)), x.stride / 2, tile.count, words}, pairs_of(to),
                  width);
  for (int64_t w = 0; tile.count < width && w < words; ++w) {
    std::fill(pairs_of(to) + w * width + tile.count, pairs_of(to) + (w + 1) * width, 0U);
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
void round_tile(const float* __restrict from, int64_t rows, int64_t width,
                Bf16Word* __restrict to) {
  for (int64_t i = 0; i < rows * width; ++i) {
    to[i] = rounded_to_bf16(from[i]);
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
void pair_rounded(const float* __restrict from, int64_t rows, int64_t width,
                  Bf16Word* __restrict to) {
  auto* __restrict const words = pairs_of(to);
  for (int64_t row = 0; row + 1 < rows; row += 2) {
    const float* __restrict even = from + row * width;
    const float* __restrict odd = even + width;
    for (int64_t c = 0; c < width; ++c) {
      words[row / 2 * width + c] = static_cast<uint32_t>(rounded_to_bf16(even[c])) |
                                   static_cast<uint32_t>(rounded_to_bf16(odd[c])) << 16;
    }
  }
  for (int64_t c = 0; rows % 2 == 1 && c < width; ++c) {
    words[rows / 2 * width + c] = rounded_to_bf16(from[(rows - 1) * width + c]);
  }
}

RINGSIDE_FOR_EACH_PROCESSOR
void row_products(const Bf16Rows& a, const Bf16Rows& b, float* __restrict out_n) {
  constexpr int64_t kLanes = 16;
  for (int64_t i = 0; i < a.count; ++i) {
    const Bf16Word* __restrict x = a.row(i);
    const Bf16Word* __restrict y = b.row(i);
    float lanes[kLanes] = {};
    int64_t d = 0;
    for (; d + kLanes <= a.head_dim; d += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += widened(x[d + lane]) * widened(y[d + lane]);
      }
    }
    for (; d < a.head_dim; ++d) {
      lanes[0] += widened(x[d]) * widened(y[d]);
    }
    out_n[i] = std::accumulate(lanes, lanes + kLanes, 0.0f);
  }
}

void product(const ProductShape& shape, bool add, const Bf16Word* a_MK, const Bf16Word* b_KN,
             float* c_MN) {
  at::native::cpublas::brgemm(shape.M, shape.N, shape.K, shape.a_stride, shape.N, shape.N, add,
                              reinterpret_cast<const at::BFloat16*>(a_MK),
                              reinterpret_cast<const at::BFloat16*>(b_KN), c_MN);
}

}  // namespace ringside::sp
