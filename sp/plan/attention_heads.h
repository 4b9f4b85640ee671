// Heads of an attention plan: their split over the Ulysses ranks, and the chunks of one rank that
// travel together in the ring. Integers only.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/heads/head_split.h"
#include "sp/layout/range.h"

namespace ringside::sp {

// split_heads() for attention, where every rank has a query head, or none has one: those of a
// tensor rank without a head attend nothing.
// Throws: as split_heads(), and std::invalid_argument for more ranks than query heads of the part.
HeadSplit split_over_ulysses(const HeadShape& heads, int64_t ulysses_size);

// Query heads that share KV heads evenly, as indices into a rank's own slices. The kernel requires
// query heads to be a multiple of KV heads. A rank whose heads begin or end inside a GQA group
// needs up to three groups.
struct HeadGroup {
  Range query_heads;
  Range kv_heads;
  bool operator==(const HeadGroup&) const = default;
};

// Head groups of at most `stride` KV heads of one rank. The groups of a chunk share a KV buffer.
// kv_heads of a group count from the rank's first KV head. stride >= 1.
struct HeadChunk {
  Range kv_heads;  // of the rank's own
  std::vector<HeadGroup> groups;
};
// Chunks of `stride` >= 1 KV heads each, the last may have fewer, for the heads of one rank: its
// ranges of HeadSplit. No heads: no chunk.
std::vector<HeadChunk> chunk_heads(const HeadShape& heads, Range query_heads, Range kv_heads,
                                   int64_t stride);

}  // namespace ringside::sp
