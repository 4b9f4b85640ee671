#include "sp/layout/whole_trees.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

namespace ringside::sp {
namespace {

constexpr double kTolerance = 1.04;   // fullest rank / mean above which a tree is cut
constexpr double kGoodEnough = 1.01;  // fullest rank / mean at which the search for exchanges stops

struct Load {
  int64_t tokens = 0;
  int64_t pairs = 0;

  Load& operator+=(const Load& other) {
    tokens += other.tokens;
    pairs += other.pairs;
    return *this;
  }
  Load operator+(const Load& other) const { return {tokens + other.tokens, pairs + other.pairs}; }
  Load operator-(const Load& other) const { return {tokens - other.tokens, pairs - other.pairs}; }
};

// A segment with all its descendants, placed as one.
struct Tree {
  int64_t root = 0;
  Load load;
};

Tree tree_of(const SegmentForest& forest, int64_t root) {
  Tree tree{root, {}};
  for (int64_t s = root; s < forest.subtree_end(root); ++s) {
    tree.load += {forest.length(s), forest.attended_pairs(s, {0, forest.length(s)})};
  }
  return tree;
}

// Assignment of trees to ranks that already hold the load `base`.
class Assignment {
 public:
  Assignment(const std::vector<Tree>& trees, int64_t ranks, Load base, Load total)
      : trees_(trees),
        loads_(ranks, base),
        owner_(trees.size()),
        total_(total),
        ranks_(static_cast<double>(ranks)) {
    std::vector<std::size_t> order(trees.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return fill(trees[a].load) > fill(trees[b].load);
    });
    for (const std::size_t t : order) {
      const auto best =
          std::min_element(loads_.begin(), loads_.end(), [&](const Load& a, const Load& b) {
            return fill(a + trees[t].load) < fill(b + trees[t].load);
          });
      *best += trees[t].load;
      owner_[t] = best - loads_.begin();
    }
    // Each change lowers the fullest rank, so the loop terminates. The bound keeps it fast on huge
    // batches.
    for (std::size_t step = 0; step < 4 * trees.size() && imbalance() > kGoodEnough && improve();
         ++step) {
    }
  }

  double imbalance() const { return fill(loads_[fullest()]); }
  int64_t owner(std::size_t tree) const { return owner_[tree]; }

  // Load / mean, of tokens or pairs, whichever is larger.
  double fill(const Load& load) const {
    const auto ratio = [&](int64_t part, int64_t whole) {
      return whole == 0 ? 0.0 : ranks_ * static_cast<double>(part) / static_cast<double>(whole);
    };
    return std::max(ratio(load.tokens, total_.tokens), ratio(load.pairs, total_.pairs));
  }

 private:
  struct Change {
    std::size_t out = 0;            // tree that leaves the fullest rank
    std::optional<std::size_t> in;  // tree that replaces it, if any
    int64_t other = 0;              // the rank of the exchange
  };

  int64_t fullest() const {
    return std::max_element(loads_.begin(), loads_.end(),
                            [&](const Load& a, const Load& b) { return fill(a) < fill(b); }) -
           loads_.begin();
  }

  // Applies the best single move or exchange between the fullest rank and another; false when none
  // helps.
  bool improve() {
    const int64_t from = fullest();
    double best = fill(loads_[from]) - 1e-9;
    std::optional<Change> change;
    const auto consider = [&](const Change& candidate, const Load& leaving) {
      const double worst =
          std::max(fill(loads_[from] - leaving), fill(loads_[candidate.other] + leaving));
      if (worst < best) {
        best = worst;
        change = candidate;
      }
    };
    for (std::size_t out = 0; out < trees_.size(); ++out) {
      if (owner_[out] != from) {
        continue;
      }
      for (int64_t r = 0; r < static_cast<int64_t>(loads_.size()); ++r) {
        if (r != from) {
          consider({out, std::nullopt, r}, trees_[out].load);
        }
      }
      for (std::size_t in = 0; in < trees_.size(); ++in) {
        if (owner_[in] != from) {
          consider({out, in, owner_[in]}, trees_[out].load - trees_[in].load);
        }
      }
    }
    if (change) {
      apply(*change, from);
    }
    return change.has_value();
  }

  void apply(const Change& change, int64_t from) {
    Load leaving = trees_[change.out].load;
    owner_[change.out] = change.other;
    if (change.in) {
      leaving = leaving - trees_[*change.in].load;
      owner_[*change.in] = from;
    }
    loads_[from] = loads_[from] - leaving;
    loads_[change.other] += leaving;
  }

  const std::vector<Tree>& trees_;
  std::vector<Load> loads_;
  std::vector<int64_t> owner_;
  Load total_;
  double ranks_;
};

}  // namespace

std::vector<int64_t> owners_of_segments(const SegmentForest& forest, int64_t ring_size) {
  std::vector<int64_t> owners(forest.num_segments(), kCutOverAllRanks);
  std::vector<Tree> trees;
  Load total;
  for (int64_t s = 0; s < forest.num_segments(); s = forest.subtree_end(s)) {
    trees.push_back(tree_of(forest, s));
    total += trees.back().load;
  }
  Load cut;
  for (;;) {
    const Assignment assignment(trees, ring_size, {cut.tokens / ring_size, cut.pairs / ring_size},
                                total);
    if (trees.empty() || assignment.imbalance() <= kTolerance) {
      for (std::size_t t = 0; t < trees.size(); ++t) {
        std::fill(owners.begin() + trees[t].root,
                  owners.begin() + forest.subtree_end(trees[t].root), assignment.owner(t));
      }
      return owners;
    }
    const auto largest =
        std::max_element(trees.begin(), trees.end(), [&](const Tree& a, const Tree& b) {
          return assignment.fill(a.load) < assignment.fill(b.load);
        });
    const int64_t root = largest->root;
    trees.erase(largest);
    cut += {forest.length(root), forest.attended_pairs(root, {0, forest.length(root)})};
    for (int64_t s = root + 1; s < forest.subtree_end(root); s = forest.subtree_end(s)) {
      trees.push_back(tree_of(forest, s));
    }
  }
}

}  // namespace ringside::sp
