// Tiles of one head of one block: how rows are cut into them, which tiles and which pairs of a tile
// are visible, and the layouts in which matrix products want them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sp/attention/block_mask.h"

namespace ringside::sp {

// At most 64 rows of a block.
struct Tile {
  static constexpr int64_t kRows = 64;

  int64_t begin;
  int64_t count;

  int64_t end() const { return begin + count; }
  // Columns of a tile of scores: the count rounded up to whole vector registers.
  int64_t width() const { return (count + 15) / 16 * 16; }
};

// Tiles that `rows` rows are cut into, and the one with that number; the last may be short.
int64_t tile_count(int64_t rows);
Tile tile_at(int64_t index, int64_t rows);

// Numbers of tiles that follow each other.
struct TileRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// The key tiles of which a query of `queries` sees a key. keys: rows.
TileRange visible_tiles(const VisibleKeys& visible, const Tile& queries, int64_t keys);

// Sets the products of hidden pairs to -inf. products: [keys.count, queries.width()].
void hide(const VisibleKeys& visible, const Tile& keys, const Tile& queries, float* products);

// Rows of one head of one block, as they lie in a tensor.
struct HeadRows {
  const float* data;
  int64_t stride;
  int64_t count;
  int64_t head_dim;

  // The first element of a row.
  const float* row(int64_t index) const { return data + index * stride; }
};

// x_BnHD: fp32, with a last dimension of stride 1.
HeadRows head_rows(const at::Tensor& x_BnHD, int64_t block, int64_t head);

// Where the rows of a head are written.
struct OutputRows {
  float* data;
  int64_t stride;
};

// x_BnHD: fp32, without gaps.
OutputRows output_rows(at::Tensor& x_BnHD, int64_t block, int64_t head);

// A number of each row of one head of one block, as they lie in a tensor.
template <class T>
struct RowFigures {
  T* data;
  int64_t stride;
  // The number of that row.
  T& operator[](int64_t row) const { return data[row * stride]; }
};

// Memory of one thread, taken in pieces.
class Scratch {
 public:
  // So many floats in all.
  explicit Scratch(int64_t floats);
  // The next piece. Not zeroed.
  float* take(int64_t floats) {
    next_ += floats;
    return next_ - floats;
  }

 private:
  at::Tensor memory_;
  float* next_;
};

// Elements of the memory that pack_columns() fills.
int64_t columns_size(int64_t rows, int64_t head_dim);

// to: the rows without gaps, [count, D].
void pack_rows(const HeadRows& x, float* to);
// to: each tile transposed, [D, width], from row tile.begin of [., D] on. Columns beyond the tile's
// count are 0, so that no product has to do with what was in memory before.
void pack_columns(const HeadRows& x, float* to);
// to: one tile of that.
void pack_columns(const HeadRows& x, const Tile& tile, float* to);

// Sizes of c_MN = a_MK b_KN. Rows of a are a_stride elements apart, those of b and c have no gaps.
struct ProductShape {
  int64_t M;
  int64_t N;
  int64_t K;
  int64_t a_stride;
};

// c = a b, or with `add` c += a b.
// Source: oneDNN's BRGEMM through LibTorch, which takes its BLAS on older processors.
void product(const ProductShape& shape, bool add, const float* a_MK, const float* b_KN,
             float* c_MN);

}  // namespace ringside::sp
