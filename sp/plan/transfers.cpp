#include "sp/plan/transfers.h"

#include <algorithm>

#include "sp/layout/range_set.h"

namespace ringside::sp {
namespace {

using Rectangles = std::vector<Rectangle>;

void append(Rectangles& all, const Rectangles& more) {
  all.insert(all.end(), more.begin(), more.end());
}

RangeSet rows_of(const PlacedShare& share) {
  std::vector<Range> ranges;
  for (const auto& run : share.runs()) {
    ranges.push_back(run.packed);
  }
  return RangeSet(std::move(ranges));
}

RangeSet keys_of(const Rectangles& rectangles) {
  std::vector<Range> ranges;
  for (const Rectangle& rectangle : rectangles) {
    ranges.push_back(rectangle.key);
  }
  return RangeSet(std::move(ranges));
}

// Blocks of the rectangles in buffer rows. Full blocks on the same queries and adjacent keys are
// joined. Ordered by first query row, as batch_blocks() requires.
std::vector<Block> make_blocks(Rectangles rectangles, const RangeSet& buffer,
                               const RangeSet& gradients, bool merge) {
  std::stable_sort(rectangles.begin(), rectangles.end(),
                   [](const Rectangle& a, const Rectangle& b) {
                     return a.query.begin != b.query.begin ? a.query.begin < b.query.begin
                                                           : a.key.begin < b.key.begin;
                   });
  std::vector<Block> blocks;
  for (const Rectangle& r : rectangles) {
    const int64_t key = buffer.place_of(r.key.begin);
    const Block block{
        r.query, {key, key + r.key.size()}, gradients.place_of(r.key.begin), r.kind, r.offset,
        merge};
    if (!blocks.empty()) {
      Block& last = blocks.back();
      if (last.kind == BlockKind::kFull && block.kind == BlockKind::kFull &&
          last.query == block.query && last.key.end == block.key.begin &&
          last.key_gradient + last.key.size() == block.key_gradient) {
        last.key.end = block.key.end;
        continue;
      }
    }
    blocks.push_back(block);
  }
  return blocks;
}

void append(std::vector<Block>& all, const std::vector<Block>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// Attention of `queries` to another share's keys, or to its own share's keys outside each run.
Rectangles attend_to_share(const SegmentForest& forest, const PlacedShare& queries,
                           const PlacedShare& keys, int64_t window) {
  Rectangles rectangles;
  for (const auto& run : keys.runs()) {
    append(rectangles, attend_to_run(forest, queries, run.segment, run.packed, window));
  }
  return rectangles;
}

// Rows sent in the p2p ring: for each owner's share, the rows that the rank t steps on needs.
class RingNeeds {
 public:
  RingNeeds(const SequenceLayout& layout, const PlanOptions& options) {
    const int64_t size = layout.ring_size();
    for (int64_t r = 0; r < size; ++r) {
      shares_.emplace_back(layout, r);
    }
    for (int64_t owner = 0; owner < size; ++owner) {
      std::vector<RangeSet> by_step{rows_of(shares_[owner])};
      for (int64_t t = 1; t < size; ++t) {
        by_step.push_back(
            options.prune ? keys_of(attend_to_share(layout.forest(), shares_[(owner + t) % size],
                                                    shares_[owner], options.window))
                          : by_step.front());
      }
      needs_.push_back(std::move(by_step));
    }
  }

  const PlacedShare& share(int64_t ring_rank) const { return shares_[ring_rank]; }
  const RangeSet& all_rows(int64_t owner) const { return needs_[owner][0]; }

  // The KV buffer at step t: rows that this rank or a later one needs.
  RangeSet buffer(int64_t owner, int64_t t) const {
    if (t == 0) {
      return all_rows(owner);
    }
    RangeSet rows;
    for (std::size_t later = t; later < needs_[owner].size(); ++later) {
      rows = rows.united(needs_[owner][later]);
    }
    return rows;
  }

  // The gradient buffer at step t >= 1: rows to which this rank or an earlier remote rank
  // contributed.
  RangeSet gradients(int64_t owner, int64_t t) const {
    RangeSet rows;
    for (int64_t earlier = 1; earlier <= t; ++earlier) {
      rows = rows.united(needs_[owner][earlier]);
    }
    return rows;
  }

 private:
  std::vector<PlacedShare> shares_;
  std::vector<std::vector<RangeSet>> needs_;  // [owner][t]
};

}  // namespace

void plan_p2p(AttentionPlan& plan, const SequenceLayout& layout) {
  const RingNeeds needs(layout, plan.options);
  const int64_t size = layout.ring_size();
  const int64_t window = plan.options.window;
  const PlacedShare& queries = needs.share(plan.ring_rank);
  for (int64_t t = 0; t < size; ++t) {
    RingStep step;
    step.kv_owner = (plan.ring_rank - t + size) % size;
    const RangeSet buffer = needs.buffer(step.kv_owner, t);
    const RangeSet gradients = t == 0 ? buffer : needs.gradients(step.kv_owner, t);
    step.kv_rows = buffer.size();
    step.gradient_rows = gradients.size();
    if (t + 1 < size) {
      step.pass_on = buffer.places_of(needs.buffer(step.kv_owner, t + 1));
    }
    if (t > 1) {
      step.gradient_received = gradients.places_of(needs.gradients(step.kv_owner, t - 1));
    }
    if (t ==
        0) {  // each row's diagonal block comes first; it is never empty, so it initialises the row
      step.blocks =
          make_blocks(attend_to_self(queries, window), buffer, gradients, /*merge=*/false);
    }
    append(step.blocks, make_blocks(attend_to_share(layout.forest(), queries,
                                                    needs.share(step.kv_owner), window),
                                    buffer, gradients, /*merge=*/true));
    plan.steps.push_back(std::move(step));
  }
  plan.gradient_home =
      needs.all_rows(plan.ring_rank).places_of(needs.gradients(plan.ring_rank, size - 1));
}

void plan_all_gather(AttentionPlan& plan, const SequenceLayout& layout) {
  const int64_t size = layout.ring_size();
  const SegmentForest& forest = layout.forest();
  const int64_t window = plan.options.window;
  const RangeSet everything({{0, layout.num_tokens()}});
  std::vector<PlacedShare> shares;
  // Of every rank, because this rank must know which rows each needs.
  std::vector<RangeSet> buffers;
  Rectangles self, others;  // of this rank
  for (int64_t r = 0; r < size; ++r) {
    shares.emplace_back(layout, r);
    const Rectangles diagonal = attend_to_self(shares[r], window);
    Rectangles before = attend_to_segment(forest, shares[r], window);
    for (int64_t s = 0; s < forest.num_segments(); ++s) {
      append(before, attend_to_run(forest, shares[r], s, forest.packed(s), window));
    }
    buffers.push_back(plan.options.prune ? keys_of(diagonal).united(keys_of(before)) : everything);
    if (r == plan.ring_rank) {
      self = diagonal;
      others = std::move(before);
    }
  }
  const RangeSet& buffer = buffers[plan.ring_rank];
  RingStep step;
  step.kv_owner = plan.ring_rank;
  step.kv_rows = buffer.size();
  step.gradient_rows = buffer.size();
  step.blocks = make_blocks(std::move(self), buffer, buffer, /*merge=*/false);
  append(step.blocks, make_blocks(std::move(others), buffer, buffer, /*merge=*/true));
  plan.steps.push_back(std::move(step));

  const RangeSet own = rows_of(shares[plan.ring_rank]);
  plan.gather.source.resize(buffer.size());
  int64_t received = 0;
  for (int64_t r = 0; r < size; ++r) {
    plan.gather.send_rows.push_back(own.places_of(own.intersected(buffers[r])));
    const RangeSet from_r = rows_of(shares[r]).intersected(buffer);
    plan.gather.recv_rows.push_back(from_r.size());
    for (const Range& place : buffer.places_of(from_r)) {
      for (int64_t row = place.begin; row < place.end; ++row) {
        plan.gather.source[row] = received++;
      }
    }
  }
}

}  // namespace ringside::sp
