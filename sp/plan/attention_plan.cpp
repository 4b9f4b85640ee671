#include "sp/plan/attention_plan.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>

#include "sp/plan/transfers.h"

namespace ringside::sp {
namespace {

// Groups blocks of one shape into batches. No query row may be in a batch twice, because the
// results of a batched call are merged together. A block that overlaps its shape's n-th batch goes
// to the next one. Blocks are ordered by first query row, so only a batch's last block is checked.
// Batches that initialise rows come first.
std::vector<BlockBatch> batch_blocks(const std::vector<Block>& blocks) {
  using Key = std::tuple<bool, BlockKind, int64_t, int64_t, int64_t, int64_t>;  // ..., n
  std::map<Key, BlockBatch> batches;
  for (const Block& block : blocks) {
    for (int64_t n = 0;; ++n) {
      BlockBatch& batch = batches[Key{block.merge, block.kind, block.offset, block.query.size(),
                                      block.key.size(), n}];
      if (!batch.query_begins.empty() &&
          batch.query_begins.back() + batch.query_rows > block.query.begin) {
        continue;
      }
      batch.query_rows = block.query.size();
      batch.key_rows = block.key.size();
      batch.kind = block.kind;
      batch.offset = block.offset;
      batch.merge = block.merge;
      batch.query_begins.push_back(block.query.begin);
      batch.key_begins.push_back(block.key.begin);
      batch.key_gradient_begins.push_back(block.key_gradient);
      break;
    }
  }
  std::vector<BlockBatch> ordered;
  for (auto& [key, batch] : batches) {
    ordered.push_back(std::move(batch));
  }
  return ordered;
}

bool gathers_backward(const PlanOptions& options) {
  return options.ring_impl == RingImpl::kAllGather || options.ring_backward == RingImpl::kAllGather;
}

// Rows of keys and values, and of their gradients, that a ring rank sends by its plan's options.
struct SentRows {
  int64_t forward = 0;
  int64_t backward = 0;
  int64_t gradient = 0;
};

SentRows sent_rows(const RingRows& rows, const PlanOptions& options) {
  const bool gathers = gathers_backward(options);
  return {options.ring_impl == RingImpl::kP2p ? rows.p2p : rows.gather,
          gathers ? rows.gather : rows.p2p, gathers ? rows.gather_gradient : rows.p2p_gradient};
}

// What the steps of a plan send.
RingRows rows_of_plan(const AttentionPlan& plan) {
  RingRows rows;
  for (int64_t t = plan.forward_steps.begin; t < plan.forward_steps.end; ++t) {
    rows.p2p += total_size(plan.steps[t].pass_on);
    rows.p2p_gradient += t == 0 ? 0 : plan.steps[t].gradient_rows;
  }
  for (std::size_t r = 0; r < plan.gather.recv_rows.size(); ++r) {
    if (static_cast<int64_t>(r) != plan.ring_rank) {
      rows.gather += total_size(plan.gather.send_rows[r]);
      rows.gather_gradient += plan.gather.recv_rows[r];
    }
  }
  return rows;
}

// ulysses_rows: [U] rows of each Ulysses rank's run of this rank's ring share.
Traffic traffic_of(const HeadSplit& split, int64_t head_dim,
                   const std::vector<int64_t>& ulysses_rows, int64_t ulysses_rank,
                   const SentRows& ring) {
  Traffic t;
  const int64_t query_heads = split.query_heads_of[ulysses_rank].size();
  const int64_t kv_heads = split.kv_heads_of[ulysses_rank].size();
  const int64_t rows = ulysses_rows[ulysses_rank];
  for (std::size_t u = 0; u < ulysses_rows.size(); ++u) {
    if (static_cast<int64_t>(u) == ulysses_rank) {
      continue;
    }
    t.ulysses_query += rows * split.query_heads_of[u].size() * head_dim;
    t.ulysses_kv += rows * 2 * split.kv_heads_of[u].size() * head_dim;
    t.ulysses_output += ulysses_rows[u] * query_heads * head_dim;
    t.ulysses_kv_grad += ulysses_rows[u] * 2 * kv_heads * head_dim;
  }
  t.kv_heads_shared = split.kv_heads_shared;
  t.ring_kv = ring.forward * 2 * kv_heads * head_dim;
  t.ring_kv_again = ring.backward * 2 * kv_heads * head_dim;
  t.ring_kv_grad = ring.gradient * 2 * kv_heads * head_dim;
  return t;
}

std::vector<int64_t> rows_of_ulysses_ranks(const SequenceLayout& layout, int64_t ring_rank) {
  std::vector<int64_t> rows;
  for (int64_t u = 0; u < layout.ulysses_size(); ++u) {
    rows.push_back(layout.ulysses_part(ring_rank, u).size());
  }
  return rows;
}

void plan_steps(AttentionPlan& plan, const SequenceLayout& layout, const RingNeeds& needs) {
  if (plan.options.ring_impl == RingImpl::kAllGather) {
    plan_all_gather(plan, layout, needs);
    plan.forward_steps = plan.backward_steps = {0, 1};
    return;
  }
  plan_p2p(plan, layout, needs);
  plan.forward_steps = plan.backward_steps = {0, plan.ring_size()};
  if (plan.ring_size() > 1 && gathers_backward(plan.options)) {
    plan_all_gather(plan, layout, needs);
    plan.backward_steps = {plan.ring_size(), plan.ring_size() + 1};
  }
}

void check_options(const PlanOptions& options) {
  if (options.heads_k_stride < 0 || options.window < 0) {
    throw std::invalid_argument(
        "attention: heads_k_stride and the window must not be negative, got " +
        std::to_string(options.heads_k_stride) + " and " + std::to_string(options.window));
  }
}

}  // namespace

AttentionPlan plan_attention(const SequenceLayout& layout, const HeadShape& heads, int64_t sp_rank,
                             const PlanOptions& options) {
  const int64_t ulysses_size = layout.ulysses_size();
  check_options(options);
  if (sp_rank < 0 || sp_rank >= layout.sp_size()) {
    throw std::invalid_argument("plan_attention: rank " + std::to_string(sp_rank) + " of " +
                                std::to_string(layout.sp_size()));
  }
  AttentionPlan plan;
  plan.heads = heads;
  plan.options = options;
  plan.ring_rank = sp_rank / ulysses_size;
  plan.ulysses_rank = sp_rank % ulysses_size;
  plan.num_ring_ranks = layout.ring_size();
  plan.share_rows = layout.ring_share_tokens(plan.ring_rank);
  plan.ulysses_rows = rows_of_ulysses_ranks(layout, plan.ring_rank);
  plan.head_split = split_over_ulysses(heads, ulysses_size);
  const bool chunked = options.ring_impl == RingImpl::kAllGather && options.heads_k_stride > 0;
  plan.head_chunks = chunk_heads(heads, plan.head_split.query_heads_of[plan.ulysses_rank],
                                 plan.head_split.kv_heads_of[plan.ulysses_rank],
                                 chunked ? options.heads_k_stride : plan.local_kv_heads());
  const RingNeeds needs(layout, options);
  plan_steps(plan, layout, needs);
  for (RingStep& step : plan.steps) {
    step.batches = batch_blocks(step.blocks);
  }
  for (const TokenRun& run : layout.ring_share(plan.ring_rank)) {
    plan.attended_pairs += layout.forest().attended_pairs(run.segment, run.offsets, options.window);
  }
  plan.traffic = traffic_of(plan.head_split, heads.head_dim, plan.ulysses_rows, plan.ulysses_rank,
                            sent_rows(rows_of_plan(plan), options));
  return plan;
}

std::vector<RankWork> work_of_ranks(const SequenceLayout& layout, const HeadShape& heads,
                                    const PlanOptions& options) {
  check_options(options);
  const HeadSplit split = split_over_ulysses(heads, layout.ulysses_size());
  const std::vector<RingRows> sent = rows_sent(RingNeeds(layout, options));
  std::vector<RankWork> all;
  for (int64_t r = 0; r < layout.ring_size(); ++r) {
    const std::vector<int64_t> rows = rows_of_ulysses_ranks(layout, r);
    const SentRows ring = sent_rows(sent[r], options);
    int64_t pairs = 0;
    for (const TokenRun& run : layout.ring_share(r)) {
      pairs += layout.forest().attended_pairs(run.segment, run.offsets, options.window);
    }
    for (int64_t u = 0; u < layout.ulysses_size(); ++u) {
      all.push_back({traffic_of(split, heads.head_dim, rows, u, ring), pairs,
                     split.query_heads_of[u].size()});
    }
  }
  return all;
}

int64_t forward_bytes(const Traffic& t, int64_t element) {
  return element * (t.ulysses_query + t.ulysses_kv + t.ulysses_output + t.ring_kv);
}

int64_t backward_bytes(const Traffic& t, int64_t element, int64_t accumulated) {
  return element * (t.ulysses_query + t.ulysses_output + t.ring_kv_again) +
         (t.kv_heads_shared ? accumulated : element) * t.ulysses_kv_grad +
         accumulated * t.ring_kv_grad;
}

}  // namespace ringside::sp
