#include "sp/plan/transfers.h"

#include <algorithm>
#include <utility>

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

// The first row of run `key` of another rank's share that `queries` need; key.packed.end if none.
int64_t first_needed(const SegmentForest& forest, const PlacedShare& queries,
                     const PlacedShare::Run& key, const PlanOptions& options) {
  if (!options.prune) {
    return key.packed.begin;
  }
  int64_t first = key.packed.end;
  for (const Rectangle& rectangle :
       attend_to_run(forest, queries, key.segment, key.packed, options.window)) {
    first = std::min(first, rectangle.key.begin);
  }
  return first;
}

}  // namespace

RingNeeds::RingNeeds(const SequenceLayout& layout, const PlanOptions& options) {
  const int64_t size = layout.ring_size();
  for (int64_t r = 0; r < size; ++r) {
    shares_.emplace_back(layout, r);
    all_rows_.push_back(rows_of(shares_.back()));
  }
  for (int64_t owner = 0; owner < size; ++owner) {
    const auto& runs = shares_[owner].runs();
    const auto n = static_cast<int64_t>(runs.size());
    std::vector<int64_t> none;
    for (const auto& run : runs) {
      none.push_back(run.packed.end);
    }
    std::vector<int64_t> by((size + 1) * n);
    for (int64_t i = 0; i < n; ++i) {
      by[i] = runs[i].packed.begin;  // t = 0: the owner itself
      for (int64_t t = 1; t < size; ++t) {
        by[t * n + i] =
            first_needed(layout.forest(), shares_[(owner + t) % size], runs[i], options);
      }
      by[size * n + i] = none[i];
    }
    std::vector<int64_t> from = by, until = by;
    std::copy(none.begin(), none.end(), until.begin());
    for (int64_t at = size * n - 1; at >= 0; --at) {
      from[at] = std::min(from[at], from[at + n]);
    }
    for (int64_t at = n; at < (size + 1) * n; ++at) {
      until[at] = std::min(until[at], until[at - n]);
    }
    by_rank_.push_back(std::move(by));
    from_rank_.push_back(std::move(from));
    until_rank_.push_back(std::move(until));
  }
}

RangeSet RingNeeds::rows(int64_t owner, const std::vector<int64_t>& first, int64_t t) const {
  const auto& runs = shares_[owner].runs();
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ranges.push_back({first[t * runs.size() + i], runs[i].packed.end});
  }
  return RangeSet(std::move(ranges));
}

int64_t RingNeeds::count(int64_t owner, const std::vector<int64_t>& first, int64_t t) const {
  const auto& runs = shares_[owner].runs();
  int64_t rows = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    rows += runs[i].packed.end - first[t * runs.size() + i];
  }
  return rows;
}

int64_t RingNeeds::p2p_kv_rows(int64_t ring_rank) const {
  int64_t sent = 0;
  for (int64_t t = 0; t + 1 < size(); ++t) {
    const int64_t owner = rank_before(ring_rank, t);
    sent += count(owner, from_rank_[owner], t + 1);
  }
  return sent;
}

int64_t RingNeeds::p2p_gradient_rows(int64_t ring_rank) const {
  int64_t sent = 0;
  for (int64_t t = 1; t < size(); ++t) {
    const int64_t owner = rank_before(ring_rank, t);
    sent += count(owner, until_rank_[owner], t);
  }
  return sent;
}

int64_t RingNeeds::gather_kv_rows(int64_t ring_rank) const {
  int64_t sent = 0;
  for (int64_t t = 1; t < size(); ++t) {
    sent += count(ring_rank, by_rank_[ring_rank], t);
  }
  return sent;
}

int64_t RingNeeds::gather_gradient_rows(int64_t ring_rank) const {
  int64_t sent = 0;
  for (int64_t t = 1; t < size(); ++t) {
    const int64_t owner = rank_before(ring_rank, t);
    sent += count(owner, by_rank_[owner], t);
  }
  return sent;
}

void plan_p2p(AttentionPlan& plan, const SequenceLayout& layout, const RingNeeds& needs) {
  const int64_t size = layout.ring_size();
  const int64_t window = plan.options.window;
  const PlacedShare& queries = needs.share(plan.ring_rank);
  for (int64_t t = 0; t < size; ++t) {
    RingStep step;
    step.kv_owner = (plan.ring_rank - t + size) % size;
    const RangeSet buffer = needs.from_rank(step.kv_owner, t);
    const RangeSet gradients = t == 0 ? buffer : needs.until_rank(step.kv_owner, t);
    step.kv_rows = buffer.size();
    step.gradient_rows = gradients.size();
    if (t + 1 < size) {
      step.pass_on = buffer.places_of(needs.from_rank(step.kv_owner, t + 1));
    }
    if (t > 1) {
      step.gradient_received = gradients.places_of(needs.until_rank(step.kv_owner, t - 1));
    }
    // Each row's diagonal block comes first; it is never empty, so it initialises the row.
    if (t == 0) {
      step.blocks =
          make_blocks(attend_to_self(queries, window), buffer, gradients, /*merge=*/false);
    }
    append(step.blocks, make_blocks(attend_to_share(layout.forest(), queries,
                                                    needs.share(step.kv_owner), window),
                                    buffer, gradients, /*merge=*/true));
    plan.steps.push_back(std::move(step));
  }
  plan.gradient_home =
      needs.all_rows(plan.ring_rank).places_of(needs.until_rank(plan.ring_rank, size - 1));
}

void plan_all_gather(AttentionPlan& plan, const SequenceLayout& layout, const RingNeeds& needs) {
  const int64_t size = layout.ring_size();
  const int64_t me = plan.ring_rank;
  const SegmentForest& forest = layout.forest();
  const int64_t window = plan.options.window;
  const PlacedShare& queries = needs.share(me);

  std::vector<RangeSet> received(size);  // rows of each rank's share in this rank's buffer
  std::vector<Range> all;
  for (int64_t r = 0; r < size; ++r) {
    const int64_t t = (me - r + size) % size;
    received[r] = t == 0 ? needs.all_rows(me) : needs.by_rank(r, t);
    all.insert(all.end(), received[r].ranges().begin(), received[r].ranges().end());
  }
  const RangeSet buffer(std::move(all));
  RingStep step;
  step.kv_owner = me;
  step.kv_rows = buffer.size();
  step.gradient_rows = buffer.size();
  step.blocks = make_blocks(attend_to_self(queries, window), buffer, buffer, /*merge=*/false);
  Rectangles before = attend_to_segment(forest, queries, window);
  for (int64_t s = 0; s < forest.num_segments(); ++s) {
    append(before, attend_to_run(forest, queries, s, forest.packed(s), window));
  }
  append(step.blocks, make_blocks(std::move(before), buffer, buffer, /*merge=*/true));
  plan.steps.push_back(std::move(step));

  const RangeSet& own = needs.all_rows(me);
  plan.gather.source.resize(buffer.size());
  int64_t next = 0;
  for (int64_t r = 0; r < size; ++r) {
    const int64_t t = (r - me + size) % size;
    plan.gather.send_rows.push_back(own.places_of(t == 0 ? own : needs.by_rank(me, t)));
    plan.gather.recv_rows.push_back(received[r].size());
    for (const Range& place : buffer.places_of(received[r])) {
      for (int64_t row = place.begin; row < place.end; ++row) {
        plan.gather.source[row] = next++;
      }
    }
  }
}

}  // namespace ringside::sp
