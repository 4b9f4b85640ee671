// What one rank computes and sends for one attention layer, as pure integers: read this file and its .cpp to learn
// how context parallelism works here.
//
// Ulysses (size U): the ranks of a Ulysses group hold consecutive runs of one ring share. An all-to-all trades
// sequence for heads: before, a rank has its run of tokens with all heads; after, the whole ring share with its own
// heads. Query heads are split into U contiguous parts whose sizes differ by at most one; a rank gets the
// key/value heads its query heads use, so a key/value head may go to several ranks.
//
// Ring (size R): the ring share's keys and values then travel around R ranks that hold the same heads of different
// shares. At step t a rank holds the KV of ring rank (r - t) mod R. A (query run, key run) pair of one document is one
// of: key entirely before query -> full block; same run -> causal square block; key after query -> nothing.
//
// Partial results of blocks that touch the same query rows are merged by their log-sum-exp. The backward runs the
// same blocks with the final LSE; each KV's gradient travels along with it from its first remote rank to its owner.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/layout/range.h"
#include "sp/layout/sequence_layout.h"

namespace ringside::sp {

struct HeadShape {
  int64_t num_query_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
};

enum class BlockKind { kFull, kCausal };

// Attention of `query` rows (share indices of this rank's share) to `key` rows (share indices of the KV owner's share).
// kCausal: both ranges are the same tokens. `merge`: earlier blocks already wrote these query rows.
struct Block {
  Range query;
  Range key;
  BlockKind kind = BlockKind::kFull;
  bool merge = false;
  bool operator==(const Block&) const = default;
};

// Blocks of one shape that run as one batched kernel call; query_begins[i] goes with key_begins[i].
struct BlockBatch {
  int64_t query_rows = 0;
  int64_t key_rows = 0;
  BlockKind kind = BlockKind::kFull;
  bool merge = false;
  std::vector<int64_t> query_begins;
  std::vector<int64_t> key_begins;
};

struct RingStep {
  int64_t kv_owner = 0;  // ring rank whose share the keys and values belong to
  std::vector<Block> blocks;
  std::vector<BlockBatch> batches;  // the same blocks, grouped by shape
};

// Query heads that share key/value heads evenly, as indices into this rank's own slices. A rank whose heads begin or
// end inside a GQA group needs up to three: the kernel wants query heads to be a multiple of KV heads.
struct HeadGroup {
  Range query_heads;
  Range kv_heads;
  bool operator==(const HeadGroup&) const = default;
};

// Elements this rank sends to others for one layer, self excluded; times the element size they are the bytes that the
// communicators count.
struct Traffic {
  int64_t ulysses_query = 0;   // q forward, dO backward
  int64_t ulysses_kv = 0;      // k and v forward
  int64_t ulysses_output = 0;  // out forward, dq backward
  int64_t ulysses_kv_grad = 0; // dk and dv backward
  int64_t ring_kv = 0;         // k and v, forward and again backward
  int64_t ring_kv_grad = 0;    // dk and dv backward, always in the accumulation dtype
};

struct AttentionPlan {
  HeadShape heads;
  int64_t ring_rank = 0;
  int64_t ulysses_rank = 0;
  int64_t share_rows = 0;                    // rows of this rank's ring share
  std::vector<int64_t> ring_share_rows;      // [R] rows of every ring share
  std::vector<int64_t> ulysses_rows;         // [U] rows of each Ulysses rank's run of this share
  std::vector<Range> query_heads_of;         // [U]
  std::vector<Range> kv_heads_of;            // [U]; ranges may overlap
  bool kv_heads_shared = false;              // some KV head goes to several Ulysses ranks
  std::vector<HeadGroup> head_groups;        // of this rank
  std::vector<RingStep> steps;               // [R]
  Traffic traffic;
  int64_t attended_pairs = 0;                // query-key pairs of this rank's blocks, per head

  int64_t ring_size() const { return static_cast<int64_t>(ring_share_rows.size()); }
  int64_t ulysses_size() const { return static_cast<int64_t>(ulysses_rows.size()); }
  int64_t local_rows() const { return ulysses_rows[ulysses_rank]; }
  int64_t local_query_heads() const { return query_heads_of[ulysses_rank].size(); }
  int64_t local_kv_heads() const { return kv_heads_of[ulysses_rank].size(); }
  // Multiply-adds count as two: q k^T and p v, forward.
  int64_t forward_flops() const {
    return 4 * attended_pairs * local_query_heads() * heads.head_dim;
  }
};

// The plan of one sp rank. Throws std::invalid_argument, the same on every rank, when query heads are not a multiple of
// KV heads, or when there are fewer query heads than Ulysses ranks.
AttentionPlan plan_attention(const SequenceLayout& layout, const HeadShape& heads, int64_t sp_rank);

}  // namespace ringside::sp
