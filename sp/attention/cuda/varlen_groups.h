// Varlen groups: the blocks of a plan step grouped for a kernel that runs blocks of any lengths in
// one call ("varlen"). A varlen group is a list of blocks with one mask, packed one after another,
// in which no query row occurs twice. Integers only; the same blocks give the same groups on every
// run.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "sp/attention/cuda/row_move.h"
#include "sp/layout/range.h"
#include "sp/plan/attention_plan.h"

namespace ringside::sp {

// FlashAttention's mask, aligned to the bottom right. Of n queries and m keys, query i attends to
// key j iff i + m - n - left <= j <= i + m - n + right; -1 = no bound on that side.
// Source: Dao 2023, version 2.1 and later.
struct VarlenGroupMask {
  int64_t left = -1;
  int64_t right = -1;

  bool causal() const { return left < 0 && right == 0; }
  auto operator<=>(const VarlenGroupMask&) const = default;
};

// Row moves, in order of work.
struct RowMoves {
  std::vector<RowMove> moves;
  int64_t rows = 0;

  // Appends `count` rows. Lengthens the last move when the rows continue it on both sides.
  void add(int64_t from, int64_t to, int64_t count);
};

struct VarlenGroup {
  VarlenGroupMask mask;
  bool merge = false;          // the query rows hold earlier results
  std::vector<Range> queries;  // [blocks] rows of the share
  std::vector<Range> keys;     // [blocks] rows of the step's KV buffer; may repeat and overlap
  std::vector<int64_t> key_gradients;  // [blocks] row of the gradient buffer for keys[b].begin
};

// Groups every block once; a windowed block with more queries than keys in two parts. Groups
// without `merge` come first, so rows are initialised before anything is merged into them. A block
// joins the first group of its mask in which its query rows are free. Blocks keep their order
// within a group. window: the plan's.
// Throws: std::invalid_argument, naming the block, when a causal block is not square, a range is
// empty, a windowed block has a query without a key, or the kernel has no mask for it (no plan
// holds such a block).
std::vector<VarlenGroup> make_varlen_groups(const std::vector<Block>& blocks, int64_t window);

// [blocks + 1] packed begins of the ranges, as int32 for the kernel.
// Throws: std::invalid_argument above 2^31 - 1 rows.
std::vector<int32_t> cumulative_rows(const std::vector<Range>& ranges);

int64_t longest(const std::vector<Range>& ranges);

// Moves from the ranges' rows to packed rows.
RowMoves to_packed(const std::vector<Range>& ranges);

// Moves from packed rows back to the ranges' rows. No row may be in two ranges.
RowMoves from_packed(const std::vector<Range>& ranges);

// Moves from packed key rows to rows of the gradient buffer, in parts. No gradient row is in one
// part twice, so a part can be added in parallel without atomics, and the parts in a fixed order.
std::vector<RowMoves> gradient_parts(const VarlenGroup& varlen_group);

}  // namespace ringside::sp
