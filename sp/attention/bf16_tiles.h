// Operands of matrix products in bf16, whose products are summed in fp32: rows of a head, packed as
// tiles in the layouts that oneDNN's BRGEMM reads. The right factor of a product is *paired*: two
// rows that follow each other lie element beside element, and an odd last one beside zeros.
//
// Shapes: D = head dim, even and at most 256. A tile has at most Tile::kRows rows; w =
// Tile::width() of it. Thread safety: any thread, on memory of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sp/attention/attention_tiles.h"

namespace ringside::sp {

using Bf16Word = uint16_t;

// Whether this processor multiplies bf16 in hardware, LibTorch finds the kernel, and tiles hold
// heads of this size.
bool has_bf16_tiles(int64_t head_dim);
// Call it at the end of a thread's products: processors with AMX keep a state for them.
void end_products();

// Rows of one head of one block in bf16, as they lie in a tensor.
struct Bf16Rows {
  const Bf16Word* data;
  int64_t stride;
  int64_t count;
  int64_t head_dim;

  // The first element of a row.
  const Bf16Word* row(int64_t index) const { return data + index * stride; }
};

// x_BnHD: bf16, with a last dimension of stride 1.
Bf16Rows bf16_rows(const at::Tensor& x_BnHD, int64_t block, int64_t head);

// to: the rows without gaps, [count, D].
void pack_rows(const Bf16Rows& x, Bf16Word* to);
// to: the tile transposed, [D, w]; zero beyond its count.
void pack_columns(const Bf16Rows& x, const Tile& tile, Bf16Word* to);
// to: the tile transposed and paired along D, [D / 2, w, 2]; zero beyond its count.
void pair_columns(const Bf16Rows& x, const Tile& tile, Bf16Word* to);
// to: the tile's rows paired, [w / 2, D, 2]; zero beyond its count.
void pair_rows(const Bf16Rows& x, const Tile& tile, Bf16Word* to);

// to: fp32 rows rounded, [rows, width].
void round_tile(const float* from, int64_t rows, int64_t width, Bf16Word* to);
// to: fp32 rows rounded and paired, [(rows + 1) / 2, width, 2].
void pair_rounded(const float* from, int64_t rows, int64_t width, Bf16Word* to);

// out_n[i] = the sum in fp32 over d of a's row i times b's.
void row_products(const Bf16Rows& a, const Bf16Rows& b, float* out_n);

// c = a b, or with `add` c += a b. b is paired; K is even.
// Source: oneDNN's BRGEMM through LibTorch.
void product(const ProductShape& shape, bool add, const Bf16Word* a_MK, const Bf16Word* b_KN,
             float* c_MN);

}  // namespace ringside::sp
