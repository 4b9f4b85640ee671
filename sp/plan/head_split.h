// Split of query and KV heads over Ulysses ranks, for any number of query heads that is a multiple
// of the KV heads and any degree up to the number of query heads. Integers only.
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

// Query heads that share KV heads evenly, as indices into a rank's own slices. The kernel requires
// query heads to be a multiple of KV heads. A rank whose heads begin or end inside a GQA group
// needs up to three groups.
struct HeadGroup {
  Range query_heads;
  Range kv_heads;
  bool operator==(const HeadGroup&) const = default;
};

// Query heads in contiguous parts whose sizes differ by at most one. Each rank gets the KV heads of
// its query heads, so a KV head may go to several ranks.
struct HeadSplit {
  std::vector<Range> query_heads_of;  // [U]
  std::vector<Range> kv_heads_of;     // [U]; ranges may overlap
  bool kv_heads_shared = false;       // some KV head goes to several ranks
};

// The split over ulysses_size >= 1 ranks.
// Throws: std::invalid_argument when query heads are not a positive multiple of KV heads, or fewer
// than ranks, or head_dim is below 1.
HeadSplit split_heads(const HeadShape& heads, int64_t ulysses_size);

// Head groups of at most `stride` KV heads of one rank. The groups of a chunk share a KV buffer.
// kv_heads of a group count from the rank's first KV head. stride >= 1.
struct HeadChunk {
  Range kv_heads;  // of the rank's own
  std::vector<HeadGroup> groups;
};
// Chunks of `stride` >= 1 KV heads each, the last may have fewer, for the heads of one rank: its
// ranges of HeadSplit.
std::vector<HeadChunk> chunk_heads(const HeadShape& heads, Range query_heads, Range kv_heads,
                                   int64_t stride);

}  // namespace ringside::sp
