// Split of query and KV heads over ranks, for any number of query heads that is a multiple of the
// KV heads and any number of ranks. Integers only.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/layout/range.h"

namespace ringside::sp {

// Heads of an attention layer.
struct HeadShape {
  int64_t num_query_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  bool operator==(const HeadShape&) const = default;
};

// Query heads in contiguous parts whose sizes differ by at most one. Each rank gets the KV heads of
// its query heads, so a KV head may go to several ranks. Ranks beyond the query heads get none.
struct HeadSplit {
  std::vector<Range> query_heads_of;  // [P]
  std::vector<Range> kv_heads_of;     // [P]; ranges may overlap
  bool kv_heads_shared = false;       // some KV head goes to several ranks
  int64_t group_size = 1;             // query heads of a KV head

  // [h]: index into the rank's KV heads for each of its query heads.
  std::vector<int64_t> kv_head_of(int64_t rank) const;
};

// The split over ranks >= 1.
// Throws: std::invalid_argument when query heads are not a positive multiple of KV heads, head_dim
// is below 1, or there is no rank.
HeadSplit split_heads(const HeadShape& heads, int64_t ranks);

}  // namespace ringside::sp
