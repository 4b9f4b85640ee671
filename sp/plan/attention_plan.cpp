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

Traffic plan_traffic(const AttentionPlan& plan) {
  Traffic t;
  const int64_t d = plan.heads.head_dim;
  for (int64_t u = 0; u < plan.ulysses_size(); ++u) {
    if (u == plan.ulysses_rank) {
      continue;
    }
    t.ulysses_query += plan.local_rows() * plan.head_split.query_heads_of[u].size() * d;
    t.ulysses_kv += plan.local_rows() * 2 * plan.head_split.kv_heads_of[u].size() * d;
    t.ulysses_output += plan.ulysses_rows[u] * plan.local_query_heads() * d;
    t.ulysses_kv_grad += plan.ulysses_rows[u] * 2 * plan.local_kv_heads() * d;
  }
  int64_t kv_rows = 0;
  int64_t gradient_rows = 0;
  if (plan.options.ring_impl == RingImpl::kP2p) {
    for (std::size_t step = 0; step < plan.steps.size(); ++step) {
      kv_rows += total_size(plan.steps[step].pass_on);
      gradient_rows += step == 0 ? 0 : plan.steps[step].gradient_rows;
    }
  } else {
    for (int64_t r = 0; r < plan.ring_size(); ++r) {
      if (r != plan.ring_rank) {
        kv_rows += total_size(plan.gather.send_rows[r]);
        gradient_rows += plan.gather.recv_rows[r];
      }
    }
  }
  t.ring_kv = kv_rows * 2 * plan.local_kv_heads() * d;
  t.ring_kv_grad = gradient_rows * 2 * plan.local_kv_heads() * d;
  return t;
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
  for (int64_t u = 0; u < ulysses_size; ++u) {
    plan.ulysses_rows.push_back(layout.ulysses_part(plan.ring_rank, u).size());
  }
  plan.head_split = split_heads(heads, ulysses_size);
  const bool chunked = options.ring_impl == RingImpl::kAllGather && options.heads_k_stride > 0;
  plan.head_chunks = chunk_heads(heads, plan.head_split.query_heads_of[plan.ulysses_rank],
                                 plan.head_split.kv_heads_of[plan.ulysses_rank],
                                 chunked ? options.heads_k_stride : plan.local_kv_heads());
  options.ring_impl == RingImpl::kP2p ? plan_p2p(plan, layout) : plan_all_gather(plan, layout);
  for (RingStep& step : plan.steps) {
    step.batches = batch_blocks(step.blocks);
    for (const Block& block : step.blocks) {
      plan.attended_pairs +=
          pairs_of({block.query, block.key, block.kind, block.offset}, options.window);
    }
  }
  plan.traffic = plan_traffic(plan);
  return plan;
}

int64_t forward_bytes(const AttentionPlan& plan, int64_t element) {
  const Traffic& t = plan.traffic;
  return element * (t.ulysses_query + t.ulysses_kv + t.ulysses_output + t.ring_kv);
}

int64_t backward_bytes(const AttentionPlan& plan, int64_t element, int64_t accumulated) {
  const Traffic& t = plan.traffic;
  const int64_t kv_grad_element = plan.head_split.kv_heads_shared ? accumulated : element;
  return element * (t.ulysses_query + t.ulysses_output + t.ring_kv) +
         kv_grad_element * t.ulysses_kv_grad + accumulated * t.ring_kv_grad;
}

}  // namespace ringside::sp
