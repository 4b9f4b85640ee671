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
    std::size_t w = 0;
    while (w < varlen_groups_.size() &&
           !(varlen_groups_[w].merge == merge && varlen_groups_[w].mask == part.mask &&
             occupied_[w].take(part.query))) {
      ++w;
    }
    if (w == varlen_groups_.size()) {
      varlen_groups_.push_back({part.mask, merge, {}, {}, {}});
      occupied_.emplace_back().take(part.query);
    }
    varlen_groups_[w].queries.push_back(part.query);
    varlen_groups_[w].keys.push_back(part.key);
    varlen_groups_[w].key_gradients.push_back(key_gradient);
  }

  std::vector<VarlenGroup> take() { return std::move(varlen_groups_); }

 private:
  std::vector<VarlenGroup> varlen_groups_;
  std::vector<Occupied> occupied_;
};

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

std::vector<VarlenGroup> make_varlen_groups(const std::vector<Block>& blocks, int64_t window) {
  VarlenGroupList varlen_groups;
  for (const bool merge : {false, true}) {
    for (const Block& block : blocks) {
      if (block.merge == merge) {
        for (const MaskedBlock& part : masked(block, window)) {
          varlen_groups.add(part, block.key_gradient, merge);
        }
      }
    }
  }
  return varlen_groups.take();
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

std::vector<RowMoves> gradient_parts(const VarlenGroup& varlen_group) {
  std::vector<RowMoves> parts;
  std::vector<Occupied> occupied;
  int64_t packed = 0;
  for (std::size_t b = 0; b < varlen_group.keys.size(); ++b) {
    const int64_t rows = varlen_group.keys[b].size();
    const int64_t to = varlen_group.key_gradients[b];
    std::size_t part = 0;
    while (part < parts.size() && !occupied[part].take({to, to + rows})) {
      ++part;
    }
    if (part == parts.size()) {
      parts.emplace_back();
      occupied.emplace_back().take({to, to + rows});
    }
    parts[part].add(packed, to, rows);
    packed += rows;
  }
  return parts;
}

}  // namespace ringside::sp
