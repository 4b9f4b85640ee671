// Attention plan: the computation and transfers of one rank for one attention layer. Integers only.
// With blocks.h and transfers.cpp it describes context parallelism completely.
//
// Ulysses (size U): the ranks of a Ulysses group hold consecutive runs of one ring share. An
// all-to-all exchanges tokens for heads. Before it, a rank has its run of tokens with all heads;
// after it, the whole ring share with its own heads (attention_heads.h).
//
// Ring (size R): the queries of a share also attend to keys of other shares. There are two ways to
// bring keys and queries together:
//   p2p: each share's keys and values travel from rank to rank. At step t a rank holds those of
//   ring rank (r - t) mod R, computes with them, and passes on the rows that later ranks need.
//   all-gather: every rank sends each other rank the rows that it needs, some KV heads at a time.
//   Each rank computes against all gathered rows at once (Llama 3).
// The backward of p2p brings keys again, in its own way or gathered.
// Only rows that some query attends to are sent. A document that is whole on one rank needs no
// transfer.
//
// The work on a KV buffer is a list of blocks: rectangles of the attention matrix. Blocks of the
// same query rows are merged by their log-sum-exp. The backward runs the same blocks with the final
// log-sum-exp. Gradients of keys and values return to their owner; with p2p they travel with the KV
// from its first remote rank on and are summed on the way.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/layout/range.h"
#include "sp/layout/sequence_layout.h"
#include "sp/plan/attention_heads.h"
#include "sp/plan/blocks.h"

namespace ringside::sp {

enum class RingImpl { kP2p, kAllGather };

struct PlanOptions {
  RingImpl ring_impl = RingImpl::kP2p;  // of the forward, and of the backward of all-gather
  int64_t heads_k_stride = 0;  // all-gather: KV heads of this rank gathered at a time; 0 = all
  // A token attends to itself and the window - 1 tokens before it; 0 = no window.
  int64_t window = 0;
  bool prune = true;  // false: send every row to every rank, as the closed formulas assume
  // Backward of p2p: kAllGather gathers all keys and values at once and sends gradients straight to
  // their owners.
  RingImpl ring_backward = RingImpl::kP2p;
};

// Attention of rows `query` of this rank's share to rows `key` of the step's KV buffer.
struct Block {
  Range query;
  Range key;
  int64_t key_gradient = 0;  // row of the step's gradient buffer for key.begin
  BlockKind kind = BlockKind::kFull;
  int64_t offset = 0;  // of kWindowed
  bool merge = false;  // earlier blocks already wrote these query rows
  bool operator==(const Block&) const = default;
};

// Blocks of one shape that run as one batched kernel call. No query row is in two of them.
struct BlockBatch {
  int64_t query_rows = 0;
  int64_t key_rows = 0;
  BlockKind kind = BlockKind::kFull;
  int64_t offset = 0;
  bool merge = false;
  std::vector<int64_t> query_begins;
  std::vector<int64_t> key_begins;
  std::vector<int64_t> key_gradient_begins;
};

// Computation on one KV buffer. All-gather has one step, p2p one per ring rank.
struct RingStep {
  int64_t kv_owner = 0;        // p2p: ring rank that owns the buffer's rows
  int64_t kv_rows = 0;         // rows of the KV buffer
  int64_t gradient_rows = 0;   // rows of the gradient buffer
  std::vector<Range> pass_on;  // p2p: rows of the KV buffer sent to the next rank
  // p2p: rows of the gradient buffer to which the previous rank's are added.
  std::vector<Range> gradient_received;
  std::vector<Block> blocks;
  // The same blocks by shape; those that initialise rows come first.
  std::vector<BlockBatch> batches;
};

// All-gather transfers. The buffer's rows arrive as one piece per ring rank, in rank order.
struct GatherTransfers {
  // [R] rows of this rank's share sent to each rank, itself included.
  std::vector<std::vector<Range>> send_rows;
  std::vector<int64_t> recv_rows;  // [R] rows received from each rank
  std::vector<int64_t> source;     // [kv_rows] index of each buffer row among the received rows
};

// Elements that this rank sends to other ranks for one layer. Times the element size they are the
// bytes that the communicators count.
struct Traffic {
  int64_t ulysses_query = 0;    // q forward, dO backward
  int64_t ulysses_kv = 0;       // k and v forward
  int64_t ulysses_output = 0;   // out forward, dq backward
  int64_t ulysses_kv_grad = 0;  // dk and dv backward
  // Some KV head goes to several ranks: ulysses_kv_grad is sent in the accumulation dtype.
  bool kv_heads_shared = false;
  int64_t ring_kv = 0;        // k and v forward
  int64_t ring_kv_again = 0;  // k and v backward
  int64_t ring_kv_grad = 0;   // dk and dv backward, always in the accumulation dtype
  bool operator==(const Traffic&) const = default;
};

// The plan of one rank for one layer. Made by plan_attention(), never changed.
struct AttentionPlan {
  HeadShape heads;  // of the layer, with this tensor rank's part
  PlanOptions options;
  int64_t ring_rank = 0;
  int64_t ulysses_rank = 0;
  int64_t share_rows = 0;             // rows of this rank's ring share
  std::vector<int64_t> ulysses_rows;  // [U] rows of each Ulysses rank's run of this share
  HeadSplit head_split;
  std::vector<HeadChunk> head_chunks;  // of this rank; more than one only with heads_k_stride
  std::vector<RingStep> steps;         // of the forward, then those that only the backward has
  Range forward_steps;
  Range backward_steps;
  std::vector<Range> gradient_home;  // p2p: rows of this share whose gradients return last
  GatherTransfers gather;            // where a pass gathers
  int64_t num_ring_ranks = 1;
  Traffic traffic;
  int64_t attended_pairs = 0;  // query-key pairs of this rank's blocks, per head

  int64_t ring_size() const { return num_ring_ranks; }
  // How the backward brings keys and values.
  RingImpl backward_impl() const {
    return forward_steps == backward_steps ? options.ring_impl : RingImpl::kAllGather;
  }
  int64_t ulysses_size() const { return static_cast<int64_t>(ulysses_rows.size()); }
  int64_t local_rows() const { return ulysses_rows[ulysses_rank]; }
  int64_t local_query_heads() const { return head_split.query_heads_of[ulysses_rank].size(); }
  int64_t local_kv_heads() const { return head_split.kv_heads_of[ulysses_rank].size(); }
  // FLOPs of q k^T and p v in the forward; a multiply-add counts as two.
  int64_t forward_flops() const {
    return 4 * attended_pairs * local_query_heads() * heads.head_dim;
  }
};

// The plan of one sp rank.
// Throws: std::invalid_argument, the same on every rank, when query heads are not a multiple of KV
// heads, when the part of them has heads, but fewer than Ulysses ranks, or when an option is
// negative; also when sp_rank is outside the layout.
// Thread safety: pure.
AttentionPlan plan_attention(const SequenceLayout& layout, const HeadShape& heads, int64_t sp_rank,
                             const PlanOptions& options = {});

// What a rank does for one layer: a plan without its blocks and rows.
struct RankWork {
  Traffic traffic;
  int64_t attended_pairs = 0;  // per head
  int64_t query_heads = 0;
};

// The work of every sp rank, in their order; equal to what plan_attention() says of each. For many
// ranks: takes far less time than their plans.
// Throws: as plan_attention().
std::vector<RankWork> work_of_ranks(const SequenceLayout& layout, const HeadShape& heads,
                                    const PlanOptions& options = {});

// Bytes that a rank sends for one layer. element: bytes of the model's dtype. accumulated: bytes
// of the dtype of partial results, 4, or 8 for fp64.
int64_t forward_bytes(const Traffic& traffic, int64_t element);
int64_t backward_bytes(const Traffic& traffic, int64_t element, int64_t accumulated);

}  // namespace ringside::sp
