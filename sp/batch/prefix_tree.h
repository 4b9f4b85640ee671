// Documents that begin alike as a forest in which what they share exists once. Torch-free; a pure
// function of the token ids, so that all ranks build the same forest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sp/layout/segment_forest.h"

namespace ringside::sp {

struct PrefixTree {
  SegmentForest forest;
  // For each document the segments that make it up, from the root on. [num_documents]
  std::vector<std::vector<int64_t>> paths;
  // Documents in the order in which their last segments stand in the forest.
  std::vector<int64_t> order;
};

// A run of tokens is shared by the documents that agree up to its end, where that saves at least
// kMinSavedTokens tokens: splitting off a few would cost more in small blocks than it saves. Equal
// documents share everything.
inline constexpr int64_t kMinSavedTokens = 16;

PrefixTree build_prefix_tree(std::span<const std::vector<int64_t>* const> documents);

// Every document a root of its own.
PrefixTree unshared_tree(std::span<const std::vector<int64_t>* const> documents);

// The packed index of each token of a document.
std::vector<int64_t> packed_indices_of(const PrefixTree& tree, int64_t document);

// Documents that are packed as one because they share a prefix, and how many tokens they have
// together.
struct Family {
  std::vector<int64_t> documents;
  int64_t tokens = 0;
};

// The trees of the forest as families, those with more than max_tokens cut between documents into
// smaller ones, each with a copy of what it shares. A single document may exceed max_tokens.
std::vector<Family> cut_into_families(const PrefixTree& tree, int64_t max_tokens);

}  // namespace ringside::sp
