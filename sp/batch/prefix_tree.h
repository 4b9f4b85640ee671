// Prefix tree of documents: a forest in which a shared prefix exists once. Torch-free. A pure
// function of the token ids and rows, so all ranks build the same forest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sp/layout/segment_forest.h"

namespace ringside::sp {

// A forest, and where each document is in it.
struct PrefixTree {
  SegmentForest forest;
  // The segments of each document, from the root on. [num_documents]
  std::vector<std::vector<int64_t>> paths;
  // Documents in the order of their last segments in the forest.
  std::vector<int64_t> order;
};

// Shortest saving for which a prefix is shared, in tokens. Splitting off fewer tokens costs more in
// small blocks than it saves. Equal documents share everything.
inline constexpr int64_t kMinSavedTokens = 16;

// The forest of the documents' common prefixes, of which one that saves fewer than kMinSavedTokens
// tokens is not shared. A pure function, the same on every rank.
// documents: the token ids of each. rows: bytes that belong to the tokens of each document, as many
// to each token, or nothing. Tokens with different rows are not shared, even if their ids are
// equal.
PrefixTree build_prefix_tree(std::span<const std::vector<int64_t>* const> documents,
                             std::span<const std::vector<uint8_t>* const> rows = {});

// The forest in which every document is a root.
PrefixTree unshared_tree(std::span<const std::vector<int64_t>* const> documents);

// Packed index of each token of a document.
// Throws: std::out_of_range when there is no such document.
std::vector<int64_t> packed_indices_of(const PrefixTree& tree, int64_t document);

// Documents packed together because they share a prefix, and their unique tokens.
struct Family {
  std::vector<int64_t> documents;
  int64_t tokens = 0;
};

// The trees of the forest as families. A family of more than max_tokens is cut between documents
// into smaller ones, each with its own copy of the shared prefix. A single document may exceed
// max_tokens.
std::vector<Family> cut_into_families(const PrefixTree& tree, int64_t max_tokens);

}  // namespace ringside::sp
