#include "sp/plan/attention_plan.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace ringside::sp {
namespace {

// A run of a ring share together with where it stands in the share.
struct PlacedRun {
  TokenRun run;
  int64_t share_begin = 0;
  Range share_range() const { return {share_begin, share_begin + run.positions.size()}; }
};

std::vector<PlacedRun> placed_runs(const SequenceLayout& layout, int64_t ring_rank) {
  std::vector<PlacedRun> placed;
  int64_t begin = 0;
  for (const TokenRun& run : layout.ring_share(ring_rank)) {
    placed.push_back({run, begin});
    begin += run.positions.size();
  }
  return placed;
}

void check_heads(const HeadShape& heads, int64_t ulysses_size) {
  if (heads.num_query_heads < 1 || heads.num_kv_heads < 1 || heads.head_dim < 1 ||
      heads.num_query_heads % heads.num_kv_heads != 0) {
    throw std::invalid_argument(
        "attention: query heads must be a positive multiple of key/value heads, got " +
        std::to_string(heads.num_query_heads) + " and " + std::to_string(heads.num_kv_heads) +
        " of dimension " + std::to_string(heads.head_dim));
  }
  if (heads.num_query_heads < ulysses_size) {
    throw std::invalid_argument("attention: ulysses size " + std::to_string(ulysses_size) +
                                " exceeds the " + std::to_string(heads.num_query_heads) +
                                " query heads; use a ring axis for the rest");
  }
}

void plan_heads(AttentionPlan& plan, int64_t ulysses_size) {
  const int64_t group = plan.heads.num_query_heads / plan.heads.num_kv_heads;
  for (int64_t u = 0; u < ulysses_size; ++u) {
    const Range q = even_part(plan.heads.num_query_heads, ulysses_size, u);
    const Range kv{q.begin / group, (q.end - 1) / group + 1};
    if (u > 0 && plan.kv_heads_of.back().end > kv.begin) {
      plan.kv_heads_shared = true;
    }
    plan.query_heads_of.push_back(q);
    plan.kv_heads_of.push_back(kv);
  }
}

// Splits this rank's query heads where a GQA group is cut by the head split, so that within each part every KV head
// serves the same number of query heads.
std::vector<HeadGroup> plan_head_groups(const HeadShape& heads, Range query, Range kv) {
  const int64_t group = heads.num_query_heads / heads.num_kv_heads;
  const auto users = [&](int64_t kv_head) {
    return std::min(query.end, (kv_head + 1) * group) - std::max(query.begin, kv_head * group);
  };
  std::vector<HeadGroup> groups;
  int64_t query_begin = 0;
  int64_t previous_users = -1;
  for (int64_t kv_head = kv.begin; kv_head < kv.end; ++kv_head) {
    const int64_t count = users(kv_head);
    if (count == previous_users) {
      groups.back().query_heads.end += count;
      groups.back().kv_heads.end += 1;
    } else {
      const int64_t local_kv = kv_head - kv.begin;
      groups.push_back({{query_begin, query_begin + count}, {local_kv, local_kv + 1}});
    }
    query_begin += count;
    previous_users = count;
  }
  return groups;
}

// The blocks of this share's queries against another share's keys (or its own, when `own`). Runs of different shares
// never overlap, so comparing positions decides.
std::vector<Block> plan_blocks(const std::vector<PlacedRun>& queries, const std::vector<PlacedRun>& keys,
                               bool own) {
  std::vector<Block> blocks;
  if (own) {  // each row's diagonal comes first: it is never empty, so it initialises the row
    for (const PlacedRun& q : queries) {
      blocks.push_back({q.share_range(), q.share_range(), BlockKind::kCausal, /*merge=*/false});
    }
  }
  auto first_key = keys.begin();
  for (const PlacedRun& q : queries) {
    while (first_key != keys.end() && first_key->run.document < q.run.document) {
      ++first_key;
    }
    for (auto k = first_key; k != keys.end() && k->run.document == q.run.document; ++k) {
      if (k->run.positions.end <= q.run.positions.begin) {
        blocks.push_back({q.share_range(), k->share_range(), BlockKind::kFull, /*merge=*/true});
      }
    }
  }
  return blocks;
}

// Groups blocks of one shape. Within a batch every query row appears once, because a batched call's results are merged
// together: the n-th block of a shape on the same rows goes to the shape's n-th batch. Initialising batches come first.
std::vector<BlockBatch> batch_blocks(const std::vector<Block>& blocks) {
  using Key = std::tuple<bool, BlockKind, int64_t, int64_t, int64_t>;  // ..., n
  std::map<Key, BlockBatch> batches;
  for (const Block& block : blocks) {
    for (int64_t n = 0;; ++n) {
      BlockBatch& batch =
          batches[Key{block.merge, block.kind, block.query.size(), block.key.size(), n}];
      if (!batch.query_begins.empty() && batch.query_begins.back() == block.query.begin) {
        continue;  // blocks on the same rows follow each other, so looking at the last one is enough
      }
      batch.query_rows = block.query.size();
      batch.key_rows = block.key.size();
      batch.kind = block.kind;
      batch.merge = block.merge;
      batch.query_begins.push_back(block.query.begin);
      batch.key_begins.push_back(block.key.begin);
      break;
    }
  }
  std::vector<BlockBatch> ordered;
  for (auto& [key, batch] : batches) {
    ordered.push_back(std::move(batch));
  }
  return ordered;
}

int64_t pairs_of(const Block& block) {
  const int64_t rows = block.query.size();
  return block.kind == BlockKind::kCausal ? rows * (rows + 1) / 2 : rows * block.key.size();
}

Traffic plan_traffic(const AttentionPlan& plan) {
  Traffic t;
  const int64_t d = plan.heads.head_dim;
  const int64_t me = plan.ulysses_rank;
  for (int64_t u = 0; u < plan.ulysses_size(); ++u) {
    if (u == me) {
      continue;
    }
    t.ulysses_query += plan.local_rows() * plan.query_heads_of[u].size() * d;
    t.ulysses_kv += plan.local_rows() * 2 * plan.kv_heads_of[u].size() * d;
    t.ulysses_output += plan.ulysses_rows[u] * plan.local_query_heads() * d;
    t.ulysses_kv_grad += plan.ulysses_rows[u] * 2 * plan.local_kv_heads() * d;
  }
  // KV of ranks r, r-1, ..., r-(R-2) is passed on; gradients of r-1, ..., r-(R-1), the last one to its owner.
  const int64_t r = plan.ring_rank;
  const int64_t size = plan.ring_size();
  for (int64_t hop = 0; hop + 1 < size; ++hop) {
    const int64_t row_elements = 2 * plan.local_kv_heads() * d;
    t.ring_kv += plan.ring_share_rows[(r - hop + size) % size] * row_elements;
    t.ring_kv_grad += plan.ring_share_rows[(r - hop - 1 + size) % size] * row_elements;
  }
  return t;
}

}  // namespace

AttentionPlan plan_attention(const SequenceLayout& layout, const HeadShape& heads, int64_t sp_rank) {
  const int64_t ulysses_size = layout.ulysses_size();
  const int64_t ring_size = layout.ring_size();
  check_heads(heads, ulysses_size);
  if (sp_rank < 0 || sp_rank >= layout.sp_size()) {
    throw std::invalid_argument("plan_attention: rank " + std::to_string(sp_rank) + " of " +
                                std::to_string(layout.sp_size()));
  }
  AttentionPlan plan;
  plan.heads = heads;
  plan.ring_rank = sp_rank / ulysses_size;
  plan.ulysses_rank = sp_rank % ulysses_size;
  plan.share_rows = layout.ring_share_tokens(plan.ring_rank);
  for (int64_t r = 0; r < ring_size; ++r) {
    plan.ring_share_rows.push_back(layout.ring_share_tokens(r));
  }
  for (int64_t u = 0; u < ulysses_size; ++u) {
    plan.ulysses_rows.push_back(layout.ulysses_part(plan.ring_rank, u).size());
  }
  plan_heads(plan, ulysses_size);
  plan.head_groups = plan_head_groups(heads, plan.query_heads_of[plan.ulysses_rank],
                                      plan.kv_heads_of[plan.ulysses_rank]);
  const auto queries = placed_runs(layout, plan.ring_rank);
  for (int64_t t = 0; t < ring_size; ++t) {
    RingStep step;
    step.kv_owner = (plan.ring_rank - t + ring_size) % ring_size;
    step.blocks = plan_blocks(queries, t == 0 ? queries : placed_runs(layout, step.kv_owner), t == 0);
    step.batches = batch_blocks(step.blocks);
    for (const Block& block : step.blocks) {
      plan.attended_pairs += pairs_of(block);
    }
    plan.steps.push_back(std::move(step));
  }
  plan.traffic = plan_traffic(plan);
  return plan;
}

}  // namespace ringside::sp
