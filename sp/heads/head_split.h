// Split of query and KV heads over ranks, for any number of query heads that is a multiple of the
// KV heads and any number of ranks. Integers only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sp/layout/range.h"

namespace ringside::sp {

// Heads of an attention layer, of which a tensor rank has a part. A part may begin or end inside a
// group of query heads with one KV head, so it is no layer with fewer heads.
struct HeadShape {
  int64_t num_query_heads = 0;  // of the layer
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  // Query heads of this tensor rank, as indices of the layer's; none: all. May be empty.
  std::optional<Range> part = {};
  bool operator==(const HeadShape&) const = default;

  // Query heads of a KV head.
  int64_t group_size() const { return num_query_heads / num_kv_heads; }
  // Heads of the part, as indices of the layer's: its query heads, and the KV heads that they read.
  Range query_heads() const { return part.value_or(Range{0, num_query_heads}); }
  Range kv_heads() const;
};

// Query heads in contiguous parts whose sizes differ by at most one. Each rank gets the KV heads of
// its query heads, so a KV head may go to several ranks. Ranks beyond the query heads get none.
// Heads count from the first of HeadShape::query_heads() and kv_heads().
struct HeadSplit {
  std::vector<Range> query_heads_of;  // [P]
  std::vector<Range> kv_heads_of;     // [P]; ranges may overlap
  bool kv_heads_shared = false;       // some KV head goes to several ranks
  int64_t group_size = 1;             // query heads of a KV head
  int64_t first_in_group = 0;         // place of query head 0 among those of its KV head

  // [h]: index into the rank's KV heads for each of its query heads.
  std::vector<int64_t> kv_head_of(int64_t rank) const;
};

// The split of the part's heads over ranks >= 1.
// Throws: std::invalid_argument when query heads are not a positive multiple of KV heads, head_dim
// is below 1, the part is no range of the query heads, or there is no rank.
HeadSplit split_heads(const HeadShape& heads, int64_t ranks);

// The heads of a tensor rank: those that split_heads() gives it.
// Throws: as split_heads(); std::out_of_range when there is no such rank.
HeadShape part_of_heads(const HeadShape& heads, int64_t ranks, int64_t rank);

}  // namespace ringside::sp
