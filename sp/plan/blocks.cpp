#include "sp/plan/blocks.h"

#include <algorithm>

namespace ringside::sp {
namespace {

// Rows of a windowed rectangle that run as one block: few enough to waste little on masked pairs.
constexpr int64_t kMinWindowTile = 64;

// The part of `queries` x `keys` inside the window. The keys' positions end at or before the
// queries' first position. The query range is empty when no key is inside.
Rectangle inside_window(Range query, int64_t query_position, Range key, int64_t key_position,
                        int64_t window) {
  const int64_t last_key = key_position + key.size() - 1;
  // The last query that sees the last key, and the first key that the first query sees.
  query.end =
      std::min(query.end, query.begin + std::max<int64_t>(0, last_key + window - query_position));
  const int64_t hidden = std::max<int64_t>(0, query_position - window + 1 - key_position);
  key.begin += hidden;
  key_position += hidden;
  if (query.empty()) {
    return {query, key, BlockKind::kFull, 0};
  }
  const int64_t last_query = query_position + query.size() - 1;
  if (last_query - key_position < window) {
    return {query, key, BlockKind::kFull, 0};
  }
  return {query, key, BlockKind::kWindowed, query_position - key_position};
}

int64_t position_of(const SegmentForest& forest, int64_t segment, int64_t packed) {
  return forest.first_position(segment) + packed - forest.packed(segment).begin;
}

}  // namespace

PlacedShare::PlacedShare(const SequenceLayout& layout, int64_t ring_rank) {
  int64_t begin = 0;
  for (const TokenRun& run : layout.ring_share(ring_rank)) {
    runs_.push_back({run.segment, layout.packed(run), {begin, begin + run.offsets.size()}});
    begin = runs_.back().share.end;
  }
}

int64_t PlacedShare::first_row(int64_t packed) const {
  const auto run =
      std::lower_bound(runs_.begin(), runs_.end(), packed,
                       [](const Run& r, int64_t value) { return r.packed.end <= value; });
  if (run == runs_.end()) {
    return runs_.empty() ? 0 : runs_.back().share.end;
  }
  return run->share.begin + std::max<int64_t>(0, packed - run->packed.begin);
}

int64_t PlacedShare::last_packed_below(int64_t packed) const {
  const auto after =
      std::lower_bound(runs_.begin(), runs_.end(), packed,
                       [](const Run& r, int64_t value) { return r.packed.begin < value; });
  return after == runs_.begin() ? -1 : std::min((after - 1)->packed.end, packed) - 1;
}

std::vector<Rectangle> attend_to_run(const SegmentForest& forest, const PlacedShare& queries,
                                     int64_t segment, Range key, int64_t window) {
  const Range after{key.end, forest.packed_subtree_end(segment)};
  const Range rows = queries.rows_in(after);
  if (rows.empty() || key.empty()) {
    return {};
  }
  if (window == 0) {
    return {{rows, key, BlockKind::kFull, 0}};
  }
  std::vector<Rectangle> rectangles;
  for (const PlacedShare::Run& run : queries.runs()) {
    const Range query{std::max(run.share.begin, rows.begin), std::min(run.share.end, rows.end)};
    if (query.empty()) {
      continue;
    }
    const int64_t first_packed = run.packed.begin + query.begin - run.share.begin;
    const Rectangle inside = inside_window(query, position_of(forest, run.segment, first_packed),
                                           key, position_of(forest, segment, key.begin), window);
    if (!inside.query.empty()) {
      rectangles.push_back(inside);
    }
  }
  return rectangles;
}

std::vector<Rectangle> attend_to_self(const PlacedShare& queries, int64_t window) {
  std::vector<Rectangle> rectangles;
  for (const PlacedShare::Run& run : queries.runs()) {
    if (window == 0 || run.packed.size() <= window) {
      rectangles.push_back({run.share, run.packed, BlockKind::kCausal, 0});
      continue;
    }
    const int64_t tile = std::max(window, kMinWindowTile);
    for (int64_t begin = 0; begin < run.packed.size(); begin += tile) {
      const int64_t end = std::min(begin + tile, run.packed.size());
      const int64_t key_begin = std::max<int64_t>(0, begin - window + 1);
      rectangles.push_back({{run.share.begin + begin, run.share.begin + end},
                            {run.packed.begin + key_begin, run.packed.begin + end},
                            BlockKind::kWindowed,
                            begin - key_begin});
    }
  }
  return rectangles;
}

std::vector<Rectangle> attend_to_segment(const SegmentForest& forest, const PlacedShare& queries,
                                         int64_t window) {
  std::vector<Rectangle> rectangles;
  for (const PlacedShare::Run& run : queries.runs()) {
    const Range key{forest.packed(run.segment).begin, run.packed.begin};
    if (key.empty()) {
      continue;
    }
    const Rectangle rectangle =
        window == 0 ? Rectangle{run.share, key, BlockKind::kFull, 0}
                    : inside_window(run.share, position_of(forest, run.segment, run.packed.begin),
                                    key, position_of(forest, run.segment, key.begin), window);
    if (!rectangle.query.empty()) {
      rectangles.push_back(rectangle);
    }
  }
  return rectangles;
}

int64_t pairs_of(const Rectangle& rectangle, int64_t window) {
  const int64_t rows = rectangle.query.size();
  const int64_t keys = rectangle.key.size();
  switch (rectangle.kind) {
    case BlockKind::kFull:
      return rows * keys;
    case BlockKind::kCausal:
      return rows * (rows + 1) / 2;
    case BlockKind::kWindowed:
      break;
  }
  int64_t pairs = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t last = std::min(keys - 1, i + rectangle.offset);
    const int64_t first = std::max<int64_t>(0, i + rectangle.offset - window + 1);
    pairs += last - first + 1;
  }
  return pairs;
}

}  // namespace ringside::sp
