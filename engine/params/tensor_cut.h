// Cut of a parameter over tensor-parallel ranks: which rows, or which columns, of its matrix each
// rank computes with. Integers only.
//
// A parameter is the matrix [shape[0], all other dims]. A matrix whose outputs are divided
// (queries, gate, vocabulary) is cut by rows, one whose inputs are divided (attention's output,
// down) by columns, both by the same items: heads, key-head groups, units of the MLP's width. So no
// number of ranks must divide anything, and a rank may have no item.
//
// Shapes: T = ranks.
// Source: Shoeybi et al. 2019 (Megatron-LM).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sp/layout/range.h"

namespace ringside::engine {

enum class CutAlong { kRows, kColumns };

// One of the ranks that divide the matrices of a model among them.
struct TensorPlace {
  int64_t rank = 0;
  int64_t ranks = 1;
  bool operator==(const TensorPlace&) const = default;
};

struct TensorCut {
  CutAlong along = CutAlong::kRows;
  // [T] the rows or columns of each part, in the part's order. None: the part is empty.
  std::vector<std::vector<sp::Range>> of_part = {};

  // Whether there are parts: without any, every rank has the whole parameter.
  bool is_cut() const { return !of_part.empty(); }
  bool operator==(const TensorCut&) const = default;
};

// [T] items of each rank, floor or ceil of their number: key-head groups, words of the vocabulary.
// Query heads and the KV heads that they read are those of sp::split_heads(); where it says
// kv_heads_shared, K and V are not cut, because a KV head would lie in several parts.
// Throws: std::invalid_argument when there are no ranks or fewer than 0 items.
std::vector<sp::Range> even_items(int64_t items, int64_t ranks);

// The same in whole units, the last of which may be short: columns of an MLP in units of 8, or of
// the block of a quantised matrix.
// Throws: std::invalid_argument as even_items(), and when a unit is below 1.
std::vector<sp::Range> even_units(int64_t items, int64_t unit, int64_t ranks);

// A cut by items that have `each` rows or columns, one item after another.
// Throws: std::invalid_argument when `each` is below 1.
TensorCut cut_items(CutAlong along, std::span<const sp::Range> items_of, int64_t each = 1);

// A cut of rows that are blocks, one after another, with `each[b]` rows for each of `items` items
// in block b: q, k and v of a gated delta net.
// Throws: std::invalid_argument when an element of `each` is below 1.
TensorCut cut_blocks(std::span<const sp::Range> items_of, int64_t items,
                     std::span<const int64_t> each);

// Checks that each element of a parameter of this shape is in exactly one part.
// Throws: std::invalid_argument that names the first row or column that is in none or two, or lies
// outside the parameter; also for a shape without dims.
void check_cut(const TensorCut& cut, const std::vector<int64_t>& shape);

// Shape of a part's piece: its rows with all other dims, or all rows with its columns.
// Throws: std::out_of_range when there is no such part; std::invalid_argument when columns are cut
// of a shape that has not two dims.
std::vector<int64_t> piece_shape(const TensorCut& cut, const std::vector<int64_t>& shape,
                                 int64_t part);

// Elements that are consecutive both in the flattened parameter and in a part's flattened piece.
struct ElementRun {
  int64_t in_parameter = 0;  // the first one
  int64_t in_piece = 0;
  int64_t size = 0;
  bool operator==(const ElementRun&) const = default;
};

// A piece's elements, in its order, in runs as long as they are.
// Throws: as piece_shape().
std::vector<ElementRun> runs_of_piece(const TensorCut& cut, const std::vector<int64_t>& shape,
                                      int64_t part);

}  // namespace ringside::engine
