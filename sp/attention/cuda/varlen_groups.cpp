#include "sp/attention/cuda/varlen_groups.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringside::sp {
namespace {

// Disjoint ranges, ordered by their begin.
class Occupied {
 public:
  // Adds the range. Returns false and changes nothing when a row of it is taken.
  bool take(Range range) {
    const auto after = end_of_.lower_bound(range.begin);
    if (after != end_of_.end() && after->first < range.end) {
      return false;
    }
    if (after != end_of_.begin() && std::prev(after)->second > range.begin) {
      return false;
    }
    end_of_.emplace_hint(after, range.begin, range.end);
    return true;
  }

 private:
  std::map<int64_t, int64_t> end_of_;
};

std::string describe(const Block& block) {
  const auto range = [](Range r) {
    return std::to_string(r.begin) + " to " + std::to_string(r.end);
  };
  return "block of queries " + range(block.query) + " and keys " + range(block.key) + ", offset " +
         std::to_string(block.offset);
}

[[noreturn]] void refuse(const Block& block, const std::string& why) {
  throw std::invalid_argument(describe(block) + ": " + why);
}

// A block, or a part of one, as passed to the kernel.
struct MaskedBlock {
  Range query;
  Range key;
  VarlenGroupMask mask;
};

// Parts of a windowed block, whose condition is 0 <= i + offset - j < window. The kernel cannot
// express three cases directly:
//   - Keys beyond the last query's own would make `right` negative, which means "no bound". They
//   are cut off.
//   - With a bound on the left, no bound on the right means max_k of the call. That is too small
//   for a block with more queries than keys. The first queries, which see every key, become a block
//   without a mask, until fewer queries than keys remain.
//   - A bound of max_k or more means no bound, so a bound that matters must be smaller.
std::vector<MaskedBlock> windowed(const Block& block, int64_t window) {
  const int64_t n = block.query.size();
  const Range key{block.key.begin, std::min(block.key.end, block.key.begin + n + block.offset)};
  const int64_t m = key.size();
  const int64_t right = block.offset - (m - n);
  const int64_t left = window - 1 - right;
  if (window <= 0 || block.offset < 0 || left < 0) {
    refuse(block, "a query attends to no key with window " + std::to_string(window));
  }
  const bool right_binds = right == 0 || right < n - 1;
  const bool left_binds = left < m - 1;
  if (right_binds && right > 0 && right >= m) {
    refuse(block, "more queries than keys, and some see neither the first nor the last key");
  }
  const VarlenGroupMask mask{left_binds ? left : -1, right_binds ? right : -1};
  if (!left_binds || right_binds || n <= m) {
    return {{block.query, key, mask}};
  }
  const int64_t split = block.query.begin + n - m + left + 1;
  return {{{block.query.begin, split}, key, {}}, {{split, block.query.end}, key, mask}};
}

std::vector<MaskedBlock> masked(const Block& block, int64_t window) {
  if (block.query.empty() || block.key.empty()) {
    refuse(block, "empty");
  }
  switch (block.kind) {
    case BlockKind::kFull:
      return {{block.query, block.key, {}}};
    case BlockKind::kCausal:
      if (block.query.size() != block.key.size()) {
        refuse(block, "causal, but not square");
      }
      return {{block.query, block.key, {-1, 0}}};
    case BlockKind::kWindowed:
      break;
  }
  return windowed(block, window);
}

// Puts a part into the first varlen group of its mask in which its query rows are free.
class VarlenGroupList {
 public:
  void add(const MaskedBlock& part, int64_t key_gradient, bool merge) {
    std::size_t g = 0;
    while (g < groups_.size() && !(groups_[g].merge == merge && groups_[g].mask == part.mask &&
                                   occupied_[g].take(part.query))) {
      ++g;
    }
    if (g == groups_.size()) {
      groups_.push_back({part.mask, merge, {}});
      occupied_.emplace_back().take(part.query);
    }
    groups_[g].entries.push_back({part.query, {{part.key, key_gradient}}});
  }

  std::vector<VarlenGroup> take() { return std::move(groups_); }

 private:
  std::vector<VarlenGroup> groups_;
  std::vector<Occupied> occupied_;
};

std::vector<VarlenGroup> group_blocks(const std::vector<Block>& blocks, int64_t window) {
  VarlenGroupList groups;
  for (const bool merge : {false, true}) {
    for (const Block& block : blocks) {
      if (block.merge == merge) {
        for (const MaskedBlock& part : masked(block, window)) {
          groups.add(part, block.key_gradient, merge);
        }
      }
    }
  }
  return groups.take();
}

// Calls visit(rows, holders) for each run of rows between neighbouring ends of the items' ranges,
// with the items that hold these rows, in their own order.
template <class Item, class RangeOf, class Visit>
void for_each_run(const std::vector<Item>& items, RangeOf range_of, Visit visit) {
  std::vector<const Item*> waiting;
  std::vector<int64_t> cuts;
  for (const Item& item : items) {
    waiting.push_back(&item);
    cuts.push_back(range_of(item).begin);
    cuts.push_back(range_of(item).end);
  }
  std::sort(waiting.begin(), waiting.end(),
            [&](const Item* a, const Item* b) { return range_of(*a).begin < range_of(*b).begin; });
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<const Item*> holders;
  std::size_t next = 0;
  for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
    const Range rows{cuts[c], cuts[c + 1]};
    std::erase_if(holders, [&](const Item* item) { return range_of(*item).end <= rows.begin; });
    for (; next < waiting.size() && range_of(*waiting[next]).begin == rows.begin; ++next) {
      holders.push_back(waiting[next]);
    }
    std::sort(holders.begin(), holders.end());
    if (!holders.empty()) {
      visit(rows, holders);
    }
  }
}

void append_keys(VarlenEntry& entry, Range rows, int64_t gradient) {
  if (!entry.keys.empty()) {
    KeyRange& last = entry.keys.back();
    if (last.rows.end == rows.begin && last.gradient + last.rows.size() == gradient) {
      last.rows.end = rows.end;
      return;
    }
  }
  entry.keys.push_back({rows, gradient});
}

// The entry of query rows that the blocks hold: full blocks in the buffer's order, then the part of
// the causal block up to the rows' last.
VarlenEntry join(Range query, std::vector<const Block*> blocks) {
  std::sort(blocks.begin(), blocks.end(), [](const Block* a, const Block* b) {
    return std::pair(a->kind == BlockKind::kCausal, a->key.begin) <
           std::pair(b->kind == BlockKind::kCausal, b->key.begin);
  });
  VarlenEntry entry{query, {}};
  for (const Block* block : blocks) {
    Range rows = block->key;
    if (block->kind == BlockKind::kCausal) {
      rows.end = rows.begin + query.end - block->query.begin;
    }
    append_keys(entry, rows, block->key_gradient);
  }
  return entry;
}

int64_t key_rows(const std::vector<VarlenGroup>& groups) {
  int64_t rows = 0;
  for (const VarlenGroup& group : groups) {
    for (const VarlenEntry& entry : group.entries) {
      rows += entry.num_keys();
    }
  }
  return rows;
}

// One entry for each run of query rows, with all its keys.
std::vector<VarlenGroup> join_blocks(const std::vector<Block>& blocks) {
  std::vector<VarlenGroup> groups;
  for (const bool merge : {false, true}) {
    for (const bool causal : {true, false}) {
      groups.push_back({{-1, causal ? 0 : -1}, merge, {}});
    }
  }
  const auto rows_of = [](const Block& block) { return block.query; };
  for_each_run(blocks, rows_of, [&](Range rows, const std::vector<const Block*>& holders) {
    bool causal = false;
    bool merge = true;
    for (const Block* block : holders) {
      causal = causal || block->kind == BlockKind::kCausal;
      merge = merge && block->merge;
    }
    groups[(merge ? 2 : 0) + (causal ? 0 : 1)].entries.push_back(join(rows, holders));
  });
  std::erase_if(groups, [](const VarlenGroup& group) { return group.entries.empty(); });
  return groups;
}

// True when the mask of a full rectangle and a causal square expresses every block.
bool can_join(const std::vector<Block>& blocks) {
  Occupied causal_rows;
  return std::all_of(blocks.begin(), blocks.end(), [&](const Block& block) {
    return block.kind == BlockKind::kFull ||
           (block.kind == BlockKind::kCausal && causal_rows.take(block.query));
  });
}

// Packed key rows that are added to rows of the gradient buffer.
struct GradientRun {
  Range to;
  int64_t from = 0;  // packed row of to.begin
};

std::vector<GradientRun> gradient_runs(const VarlenGroup& group) {
  std::vector<GradientRun> runs;
  int64_t packed = 0;
  for (const VarlenEntry& entry : group.entries) {
    for (const KeyRange& range : entry.keys) {
      runs.push_back({{range.gradient, range.gradient + range.rows.size()}, packed});
      packed += range.rows.size();
    }
  }
  return runs;
}

// Appends rows `to` with a source in each run. Lengthens the last sum when all sources continue it.
void append_sum(RowSums& result, Range to, const std::vector<const GradientRun*>& runs) {
  std::vector<int64_t> from;
  for (const GradientRun* run : runs) {
    from.push_back(run->from + to.begin - run->to.begin);
  }
  if (!result.sums.empty()) {
    const RowSum& last = result.sums.back();
    const int64_t rows = result.rows - last.first;
    bool continues = last.to + rows == to.begin &&
                     last.sources_end - last.sources_begin == static_cast<int64_t>(from.size());
    for (std::size_t i = 0; continues && i < from.size(); ++i) {
      continues = result.sources[last.sources_begin + i] + rows == from[i];
    }
    if (continues) {
      result.rows += to.size();
      return;
    }
  }
  const auto begin = static_cast<int64_t>(result.sources.size());
  result.sources.insert(result.sources.end(), from.begin(), from.end());
  result.sums.push_back(
      {result.rows, to.begin, begin, static_cast<int64_t>(result.sources.size())});
  result.rows += to.size();
}

}  // namespace

void RowMoves::add(int64_t from, int64_t to, int64_t count) {
  if (count == 0) {
    return;
  }
  const bool continues = !moves.empty() && moves.back().from + rows - moves.back().first == from &&
                         moves.back().to + rows - moves.back().first == to;
  if (!continues) {
    moves.push_back({rows, from, to});
  }
  rows += count;
}

int64_t VarlenEntry::num_keys() const {
  int64_t rows = 0;
  for (const KeyRange& range : keys) {
    rows += range.rows.size();
  }
  return rows;
}

std::vector<VarlenGroup> make_varlen_groups(const std::vector<Block>& blocks, int64_t window) {
  std::vector<VarlenGroup> by_block = group_blocks(blocks, window);  // checks the blocks
  if (!can_join(blocks)) {
    return by_block;
  }
  std::vector<VarlenGroup> joined = join_blocks(blocks);
  return key_rows(joined) <= kMaxKeyRepeats * key_rows(by_block) ? joined : by_block;
}

std::vector<Range> query_rows(const VarlenGroup& group) {
  std::vector<Range> rows;
  for (const VarlenEntry& entry : group.entries) {
    rows.push_back(entry.query);
  }
  return rows;
}

std::vector<Range> packed_keys(const VarlenGroup& group) {
  std::vector<Range> rows;
  int64_t begin = 0;
  for (const VarlenEntry& entry : group.entries) {
    rows.push_back({begin, begin + entry.num_keys()});
    begin = rows.back().end;
  }
  return rows;
}

std::vector<int32_t> cumulative_rows(const std::vector<Range>& ranges) {
  std::vector<int32_t> begins{0};
  int64_t rows = 0;
  for (const Range& range : ranges) {
    rows += range.size();
    if (rows > std::numeric_limits<int32_t>::max()) {
      throw std::invalid_argument("a kernel call of " + std::to_string(rows) +
                                  " rows, at most 2^31 - 1");
    }
    begins.push_back(static_cast<int32_t>(rows));
  }
  return begins;
}

int64_t longest(const std::vector<Range>& ranges) {
  int64_t rows = 0;
  for (const Range& range : ranges) {
    rows = std::max(rows, range.size());
  }
  return rows;
}

RowMoves keys_to_packed(const VarlenGroup& group) {
  RowMoves moves;
  for (const VarlenEntry& entry : group.entries) {
    for (const KeyRange& range : entry.keys) {
      moves.add(range.rows.begin, moves.rows, range.rows.size());
    }
  }
  return moves;
}

RowMoves to_packed(const std::vector<Range>& ranges) {
  RowMoves moves;
  for (const Range& range : ranges) {
    moves.add(range.begin, moves.rows, range.size());
  }
  return moves;
}

RowMoves from_packed(const std::vector<Range>& ranges) {
  RowMoves moves;
  for (const Range& range : ranges) {
    moves.add(moves.rows, range.begin, range.size());
  }
  return moves;
}

bool RowSums::identity(int64_t count) const {
  return rows == count && sums.size() == 1 && sources.size() == 1 && sums[0].to == 0 &&
         sources[0] == 0;
}

RowSums as_sums(const RowMoves& moves) {
  RowSums result;
  result.rows = moves.rows;
  for (const RowMove& move : moves.moves) {
    const auto source = static_cast<int64_t>(result.sources.size());
    result.sums.push_back({move.first, move.to, source, source + 1});
    result.sources.push_back(move.from);
  }
  return result;
}

RowSums gradient_sums(const VarlenGroup& group) {
  RowSums result;
  for_each_run(
      gradient_runs(group), [](const GradientRun& run) { return run.to; },
      [&](Range to, const std::vector<const GradientRun*>& runs) { append_sum(result, to, runs); });
  return result;
}

}  // namespace ringside::sp
