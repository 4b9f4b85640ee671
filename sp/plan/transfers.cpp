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

}  // namespace

RingNeeds::RingNeeds(const SequenceLayout& layout, const PlanOptions& options)
    : forest_(layout.forest()), options_(options) {
  for (int64_t r = 0; r < layout.ring_size(); ++r) {
    shares_.emplace_back(layout, r);
    const PlacedShare& share = shares_.back();
    all_rows_.push_back(rows_of(share));
    std::vector<int64_t>& last = last_row_.emplace_back();
    for (int64_t s = 0; s < forest_.num_segments(); ++s) {
      last.push_back(share.last_packed_below(forest_.packed_subtree_end(s)));
    }
  }
}

int64_t RingNeeds::first_row(int64_t owner, const PlacedShare::Run& run, int64_t t) const {
  const int64_t rank = (owner + t) % ring_size();
  if (!options_.prune) {
    return run.packed.begin;
  }
  if (last_row_[rank][run.segment] < run.packed.end) {
    return run.packed.end;
  }
  if (options_.window == 0) {
    return run.packed.begin;
  }
  int64_t first = run.packed.end;
  for (const Rectangle& rectangle :
       attend_to_run(forest_, shares_[rank], run.segment, run.packed, options_.window)) {
    first = std::min(first, rectangle.key.begin);
  }
  return first;
}

RangeSet RingNeeds::by_rank(int64_t owner, int64_t t) const {
  std::vector<Range> ranges;
  for (const PlacedShare::Run& run : shares_[owner].runs()) {
    ranges.push_back({first_row(owner, run, t), run.packed.end});
  }
  return RangeSet(std::move(ranges));
}

RangeSet RingNeeds::from_rank(int64_t owner, int64_t t) const {
  if (t == 0) {
    return all_rows_[owner];
  }
  std::vector<Range> ranges;
  for (const PlacedShare::Run& run : shares_[owner].runs()) {
    Range needed{run.packed.end, run.packed.end};
    for (int64_t at = t; at < ring_size() && needed.begin > run.packed.begin; ++at) {
      needed.begin = std::min(needed.begin, first_row(owner, run, at));
    }
    ranges.push_back(needed);
  }
  return RangeSet(std::move(ranges));
}

RangeSet RingNeeds::until_rank(int64_t owner, int64_t t) const {
  std::vector<Range> ranges;
  for (const PlacedShare::Run& run : shares_[owner].runs()) {
    Range needed{run.packed.end, run.packed.end};
    for (int64_t at = 1; at <= t && needed.begin > run.packed.begin; ++at) {
      needed.begin = std::min(needed.begin, first_row(owner, run, at));
    }
    ranges.push_back(needed);
  }
  return RangeSet(std::move(ranges));
}

std::vector<RingRows> rows_sent(const RingNeeds& needs) {
  const int64_t size = needs.ring_size();
  std::vector<RingRows> sent(size);
  std::vector<int64_t> by(size);  // [t] rows of a run that the rank t steps on needs
  for (int64_t owner = 0; owner < size; ++owner) {
    for (const PlacedShare::Run& run : needs.share(owner).runs()) {
      int64_t until = 0;  // rows that the ranks up to t need
      for (int64_t t = 1; t < size; ++t) {
        by[t] = run.packed.end - needs.first_row(owner, run, t);
        until = std::max(until, by[t]);
        RingRows& rank = sent[(owner + t) % size];
        rank.p2p_gradient += until;
        rank.gather_gradient += by[t];
        sent[owner].gather += by[t];
      }
      int64_t from = 0;  // rows that the ranks from t on need: the rank before passes them on
      for (int64_t t = size - 1; t >= 1; --t) {
        from = std::max(from, by[t]);
        sent[(owner + t - 1) % size].p2p += from;
      }
    }
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
