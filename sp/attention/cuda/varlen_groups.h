// Varlen groups: the blocks of a plan step grouped for a kernel that runs entries of any lengths in
// one call ("varlen"). A varlen group is a list of entries with one mask, packed one after another,
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

// Consecutive keys of an entry.
struct KeyRange {
  Range rows;            // of the step's KV buffer
  int64_t gradient = 0;  // row of the gradient buffer for rows.begin
  bool operator==(const KeyRange&) const = default;
};

// Consecutive query rows and all keys that they attend to in one call.
struct VarlenEntry {
  Range query;                 // rows of the share
  std::vector<KeyRange> keys;  // packed one after another

  // Rows of all its keys.
  int64_t num_keys() const;
};

struct VarlenGroup {
  VarlenGroupMask mask;
  bool merge = false;                // the query rows hold earlier results
  std::vector<VarlenEntry> entries;  // their keys may repeat and overlap
};

// Covers every block once. Groups without `merge` come first, so rows are initialised before
// anything is merged into them.
//
// Without windowed blocks each query row is in one entry with all its keys: those it attends to in
// full, in the buffer's order, then its own causal block. The bottom right mask expresses that. So
// a step whose blocks initialise all their rows is one group, and no result is merged. Keys that
// several entries attend to are repeated; if that takes more than kMaxKeyRepeats times the key rows
// of the blocks, each block is an entry of its own instead.
//
// A windowed step has an entry for each block, or two where a block has more queries than keys. An
// entry joins the first group of its mask in which its query rows are free.
//
// window: the plan's.
// Throws: std::invalid_argument, naming the block, when a causal block is not square, a range is
// empty, a windowed block has a query without a key, or the kernel has no mask for it (no plan
// holds such a block).
std::vector<VarlenGroup> make_varlen_groups(const std::vector<Block>& blocks, int64_t window);

// Bounds the memory of gathered keys. Without it, a long prompt of many short completions would be
// gathered once for each of them.
inline constexpr int64_t kMaxKeyRepeats = 4;

// [entries] rows of the share, and packed key rows.
std::vector<Range> query_rows(const VarlenGroup& group);
std::vector<Range> packed_keys(const VarlenGroup& group);

// [ranges + 1] packed begins of the ranges, as int32 for the kernel.
// Throws: std::invalid_argument above 2^31 - 1 rows.
std::vector<int32_t> cumulative_rows(const std::vector<Range>& ranges);

// Rows of the longest range; 0 when there is none.
int64_t longest(const std::vector<Range>& ranges);

// Row moves, in order of work.
struct RowMoves {
  std::vector<RowMove> moves;
  int64_t rows = 0;

  // Appends `count` rows. Lengthens the last move when the rows continue it on both sides.
  void add(int64_t from, int64_t to, int64_t count);
};

// Moves from the group's key rows in the buffer to packed rows.
RowMoves keys_to_packed(const VarlenGroup& group);

// Moves from the ranges' rows to packed rows.
RowMoves to_packed(const std::vector<Range>& ranges);

// Moves from packed rows back to the ranges' rows. No row may be in two ranges.
RowMoves from_packed(const std::vector<Range>& ranges);

// Row sums, in order of work. No destination row is in two of them.
struct RowSums {
  std::vector<RowSum> sums;
  std::vector<int64_t> sources;
  int64_t rows = 0;

  // Every row has one source, and source and destination are the same rows [0, count).
  bool identity(int64_t count) const;
};

// One source for each row.
RowSums as_sums(const RowMoves& moves);

// The sums of packed key rows that give the rows of the gradient buffer. Sources are in the order
// of the packing, so a sum's order is fixed.
RowSums gradient_sums(const VarlenGroup& group);

}  // namespace ringside::sp
