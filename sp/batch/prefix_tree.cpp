#include "sp/batch/prefix_tree.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ringside::sp {
namespace {

using Ids = std::vector<int64_t>;
using Rows = std::vector<uint8_t>;

// A document's tokens: ids, and as many rows of bytes, or none.
struct Tokens {
  const Ids& ids;
  const Rows* rows;

  std::span<const uint8_t> row(int64_t i) const {
    const std::size_t bytes = rows->size() / ids.size();
    return std::span(*rows).subspan(i * bytes, bytes);
  }
};

int64_t common_prefix(const Tokens& a, const Tokens& b) {
  const auto end = std::mismatch(a.ids.begin(), a.ids.end(), b.ids.begin(), b.ids.end());
  const int64_t common = end.first - a.ids.begin();
  if (a.rows == nullptr || common == 0) {
    return common;
  }
  const auto bytes = static_cast<int64_t>(a.rows->size() / a.ids.size());
  const auto different =
      std::mismatch(a.rows->begin(), a.rows->begin() + common * bytes, b.rows->begin()).first -
      a.rows->begin();
  return bytes == 0 ? common : std::min(common, different / bytes);
}

// Lexicographic order of tokens, by id and then by row.
bool is_before(const Tokens& a, const Tokens& b) {
  const auto common = static_cast<std::size_t>(common_prefix(a, b));
  if (common == a.ids.size() || common == b.ids.size()) {
    return a.ids.size() < b.ids.size();
  }
  if (a.ids[common] != b.ids[common]) {
    return a.ids[common] < b.ids[common];
  }
  const auto place = static_cast<int64_t>(common);
  return std::ranges::lexicographical_compare(a.row(place), b.row(place));
}

// Builder over the documents in order of is_before(), in which the documents of a subtree are
// neighbours.
class Builder {
 public:
  Builder(std::span<const Ids* const> documents, std::span<const Rows* const> rows)
      : documents_(documents), rows_(rows), order_(documents.size()) {
    std::iota(order_.begin(), order_.end(), int64_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int64_t a, int64_t b) { return is_before(tokens(a), tokens(b)); });
    for (std::size_t i = 1; i < order_.size(); ++i) {
      shared_with_next_.push_back(common_prefix(tokens(order_[i - 1]), tokens(order_[i])));
    }
    paths_.resize(documents.size());
  }

  PrefixTree build() {
    if (!order_.empty()) {
      add_range(0, order_.size(), 0, -1, {});
    }
    return {SegmentForest(std::move(segments_)), std::move(paths_), std::move(order_)};
  }

 private:
  Tokens tokens(int64_t document) const {
    return {*documents_[document], rows_.empty() ? nullptr : rows_[document]};
  }

  int64_t length(std::size_t i) const {
    return static_cast<int64_t>(documents_[order_[i]]->size());
  }

  int64_t add_segment(int64_t parent, int64_t tokens) {
    segments_.push_back({parent, tokens});
    return static_cast<int64_t>(segments_.size()) - 1;
  }

  // Adds the documents [first, last) of the sorted order from token `depth` on. They agree on all
  // tokens before it, which are `path`.
  void add_range(std::size_t first, std::size_t last, int64_t depth, int64_t parent,
                 std::vector<int64_t> path) {
    if (last - first == 1) {
      path.push_back(add_segment(parent, length(first) - depth));
      paths_[order_[first]] = std::move(path);
      return;
    }
    const int64_t common =
        *std::min_element(shared_with_next_.begin() + first, shared_with_next_.begin() + last - 1);
    const auto others = static_cast<int64_t>(last - first) - 1;
    if ((common - depth) * others >= kMinSavedTokens) {
      parent = add_segment(parent, common - depth);
      path.push_back(parent);
      depth = common;
    }
    // Cuts where neighbours stop agreeing. A document that ends at `depth` needs no segment of its
    // own.
    std::size_t begin = first;
    for (std::size_t end = first + 1; end <= last; ++end) {
      if (end < last && shared_with_next_[end - 1] > common) {
        continue;
      }
      if (end - begin == 1 && length(begin) == depth && !path.empty()) {
        paths_[order_[begin]] = path;
      } else {
        add_range(begin, end, depth, parent, path);
      }
      begin = end;
    }
  }

  std::span<const Ids* const> documents_;
  std::span<const Rows* const> rows_;  // empty: none
  std::vector<int64_t> order_;
  std::vector<int64_t> shared_with_next_;  // [n - 1]
  std::vector<Segment> segments_;
  std::vector<std::vector<int64_t>> paths_;
};

}  // namespace

PrefixTree build_prefix_tree(std::span<const std::vector<int64_t>* const> documents,
                             std::span<const std::vector<uint8_t>* const> rows) {
  return Builder(documents, rows).build();
}

PrefixTree unshared_tree(std::span<const std::vector<int64_t>* const> documents) {
  std::vector<Segment> segments;
  PrefixTree tree{SegmentForest({}), {}, {}};
  for (const auto* ids : documents) {
    const auto index = static_cast<int64_t>(segments.size());
    segments.push_back({-1, static_cast<int64_t>(ids->size())});
    tree.paths.push_back({index});
    tree.order.push_back(index);
  }
  tree.forest = SegmentForest(std::move(segments));
  return tree;
}

std::vector<int64_t> packed_indices_of(const PrefixTree& tree, int64_t document) {
  std::vector<int64_t> packed;
  for (const int64_t segment : tree.paths.at(document)) {
    const Range range = tree.forest.packed(segment);
    for (int64_t i = range.begin; i < range.end; ++i) {
      packed.push_back(i);
    }
  }
  return packed;
}

std::vector<Family> cut_into_families(const PrefixTree& tree, int64_t max_tokens) {
  std::vector<Family> families;
  const std::vector<int64_t>* previous = nullptr;
  for (const int64_t document : tree.order) {
    const auto& path = tree.paths[document];
    int64_t tokens = 0;      // of the document
    int64_t additional = 0;  // tokens not shared with the document before it
    for (std::size_t i = 0; i < path.size(); ++i) {
      tokens += tree.forest.length(path[i]);
      const bool shared = previous != nullptr && i < previous->size() && (*previous)[i] == path[i];
      additional += shared ? 0 : tree.forest.length(path[i]);
    }
    const bool related = previous != nullptr && previous->front() == path.front();
    if (related && families.back().tokens + additional <= max_tokens) {
      families.back().tokens += additional;
      families.back().documents.push_back(document);
    } else {
      families.push_back({{document}, tokens});
    }
    previous = &path;
  }
  return families;
}

}  // namespace ringside::sp
