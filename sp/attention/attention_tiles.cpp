#include "sp/attention/attention_tiles.h"

#include <ATen/ATen.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <limits>

#include "sp/attention/tile_math.h"

namespace ringside::sp {

static_assert(Tile::kRows <= kMaxWidth);

int64_t tile_count(int64_t rows) { return (rows + Tile::kRows - 1) / Tile::kRows; }

Tile tile_at(int64_t index, int64_t rows) {
  const int64_t begin = index * Tile::kRows;
  return {begin, std::min(Tile::kRows, rows - begin)};
}

TileRange visible_tiles(const VisibleKeys& visible, const Tile& queries, int64_t keys) {
  const int64_t first = queries.begin - visible.high + 1;
  const int64_t last = queries.end() - 1 - visible.low;
  if (last < 0 || first >= keys) {
    return {};
  }
  return {std::max<int64_t>(first, 0) / Tile::kRows, std::min(last, keys - 1) / Tile::kRows + 1};
}

void hide(const VisibleKeys& visible, const Tile& keys, const Tile& queries, float* products) {
  const int64_t nearest = queries.begin - (keys.end() - 1);
  const int64_t farthest = queries.end() - 1 - keys.begin;
  if (nearest >= visible.low && farthest < visible.high) {
    return;
  }
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  const int64_t width = queries.width();
  for (int64_t key = 0; key < keys.count; ++key) {
    float* const row = products + key * width;
    const int64_t same_row = keys.begin + key - queries.begin;  // column at distance 0
    const int64_t begin = std::clamp<int64_t>(same_row + visible.low, 0, width);
    const int64_t end = std::clamp<int64_t>(same_row + visible.high, begin, width);
    std::fill(row, row + begin, kHidden);
    std::fill(row + end, row + width, kHidden);
  }
}

HeadRows head_rows(const at::Tensor& x_BnHD, int64_t block, int64_t head) {
  return {x_BnHD.const_data_ptr<float>() + block * x_BnHD.stride(0) + head * x_BnHD.stride(2),
          x_BnHD.stride(1), x_BnHD.size(1), x_BnHD.size(3)};
}

OutputRows output_rows(at::Tensor& x_BnHD, int64_t block, int64_t head) {
  const int64_t heads = x_BnHD.size(2), head_dim = x_BnHD.size(3);
  return {x_BnHD.mutable_data_ptr<float>() + (block * x_BnHD.size(1) * heads + head) * head_dim,
          heads * head_dim};
}

Scratch::Scratch(int64_t floats) : memory_(at::empty({floats}, at::kFloat)) {
  next_ = memory_.mutable_data_ptr<float>();
}

int64_t columns_size(int64_t rows, int64_t head_dim) {
  const Tile rest{rows / Tile::kRows * Tile::kRows, rows % Tile::kRows};
  return (rest.begin + rest.width()) * head_dim;
}

void pack_rows(const HeadRows& x, float* to) {
  for (int64_t row = 0; row < x.count; ++row) {
    std::copy_n(x.row(row), x.head_dim, to + row * x.head_dim);
  }
}

void pack_columns(const HeadRows& x, const Tile& tile, float* to) {
  const int64_t width = tile.width();
  transpose(x.row(tile.begin), x.stride, tile.count, x.head_dim, 1.0f, to, width);
  if (tile.count < width) {
    for (int64_t d = 0; d < x.head_dim; ++d) {
      std::fill(to + d * width + tile.count, to + (d + 1) * width, 0.0f);
    }
  }
}

void pack_columns(const HeadRows& x, float* to) {
  for (int64_t t = 0; t < tile_count(x.count); ++t) {
    const Tile tile = tile_at(t, x.count);
    pack_columns(x, tile, to + tile.begin * x.head_dim);
  }
}

void product(const ProductShape& shape, bool add, const float* a_MK, const float* b_KN,
             float* c_MN) {
  at::native::cpublas::brgemm(shape.M, shape.N, shape.K, shape.a_stride, shape.N, shape.N, add,
                              a_MK, b_KN, c_MN);
}

}  // namespace ringside::sp
