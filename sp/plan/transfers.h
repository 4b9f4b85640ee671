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
  // Of all pairs of ranks of the layout's ring. The layout must outlive the object.
  RingNeeds(const SequenceLayout& layout, const PlanOptions& options);

  int64_t ring_size() const { return static_cast<int64_t>(shares_.size()); }
  // A rank's own share; all rows of it, as packed rows.
  const PlacedShare& share(int64_t ring_rank) const { return shares_[ring_rank]; }
  const RangeSet& all_rows(int64_t owner) const { return all_rows_[owner]; }

  // Packed rows of owner's share needed by the rank t >= 1 steps on; by a rank at least t >= 0
  // steps on, the owner itself being 0 steps on; by a remote rank at most t steps on.
  RangeSet by_rank(int64_t owner, int64_t t) const;
  RangeSet from_rank(int64_t owner, int64_t t) const;
  RangeSet until_rank(int64_t owner, int64_t t) const;

  // First packed row of the run that the rank t >= 1 steps on needs; the run's end if none.
  int64_t first_row(int64_t owner, const PlacedShare::Run& run, int64_t t) const;

 private:
  const SegmentForest& forest_;
  PlanOptions options_;
  std::vector<PlacedShare> shares_;
  std::vector<RangeSet> all_rows_;
  // [ring_rank][segment] last row below the end of the segment's subtree; -1 if none. Without a
  // window a rank needs all keys of a run or none, and this number decides.
  std::vector<std::vector<int64_t>> last_row_;
};

// Rows that a ring rank sends by each method: keys and values, and their gradients.
struct RingRows {
  int64_t p2p = 0;
  int64_t p2p_gradient = 0;
  int64_t gather = 0;
  int64_t gather_gradient = 0;
};

// Rows sent by every ring rank, in rank order.
std::vector<RingRows> rows_sent(const RingNeeds& needs);

// The steps of each method. Both read plan.ring_rank and plan.options and append to plan.steps.
// plan_p2p fills plan.gradient_home too, plan_all_gather plan.gather.
void plan_p2p(AttentionPlan& plan, const SequenceLayout& layout, const RingNeeds& needs);
void plan_all_gather(AttentionPlan& plan, const SequenceLayout& layout, const RingNeeds& needs);

}  // namespace ringside::sp
