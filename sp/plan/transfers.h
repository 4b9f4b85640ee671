// Rows that ring ranks send each other, and the steps of the two ring forms that follow. Parts of
// plan_attention and of the ranking of methods. Integers only.
#pragma once

#include <cstdint>
#include <vector>

#include "sp/layout/range_set.h"
#include "sp/plan/attention_plan.h"
#include "sp/plan/blocks.h"

namespace ringside::sp {

// Rows of each share that each other ring rank needs. Of a run of keys a rank needs the last ones:
// all from the first key that one of its queries attends to. So one number a run and rank describes
// the need, also of several ranks together.
class RingNeeds {
 public:
  RingNeeds(const SequenceLayout& layout, const PlanOptions& options);

  const PlacedShare& share(int64_t ring_rank) const { return shares_[ring_rank]; }
  const RangeSet& all_rows(int64_t owner) const { return all_rows_[owner]; }

  // Packed rows of owner's share needed by the rank t >= 1 steps on, by it or a later one, and by
  // it or an earlier remote one. t = ring_size: the last two of no rank and of all.
  RangeSet by_rank(int64_t owner, int64_t t) const { return rows(owner, by_rank_[owner], t); }
  RangeSet from_rank(int64_t owner, int64_t t) const { return rows(owner, from_rank_[owner], t); }
  RangeSet until_rank(int64_t owner, int64_t t) const { return rows(owner, until_rank_[owner], t); }

  // Rows that a rank sends: p2p, all-gather, and their gradients.
  int64_t p2p_kv_rows(int64_t ring_rank) const;
  int64_t p2p_gradient_rows(int64_t ring_rank) const;
  int64_t gather_kv_rows(int64_t ring_rank) const;
  int64_t gather_gradient_rows(int64_t ring_rank) const;

 private:
  // [owner][t * runs + run] first packed row needed; the run's end if none.
  using FirstRows = std::vector<std::vector<int64_t>>;

  int64_t size() const { return static_cast<int64_t>(shares_.size()); }
  int64_t rank_before(int64_t ring_rank, int64_t t) const {
    return (ring_rank - t + size()) % size();
  }
  RangeSet rows(int64_t owner, const std::vector<int64_t>& first, int64_t t) const;
  int64_t count(int64_t owner, const std::vector<int64_t>& first, int64_t t) const;

  std::vector<PlacedShare> shares_;
  std::vector<RangeSet> all_rows_;
  FirstRows by_rank_;
  FirstRows from_rank_;
  FirstRows until_rank_;
};

// Both read plan.ring_rank and plan.options and append to plan.steps. plan_p2p fills
// plan.gradient_home too, plan_all_gather plan.gather.
void plan_p2p(AttentionPlan& plan, const SequenceLayout& layout, const RingNeeds& needs);
void plan_all_gather(AttentionPlan& plan, const SequenceLayout& layout, const RingNeeds& needs);

}  // namespace ringside::sp
