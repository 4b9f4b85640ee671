// Who holds which token of a packed micro-batch. Pure integers, the same on every rank; the one object through
// which every token-aligned field is cut and put together again, so that no two fields can disagree.
//
// Documents of any length are packed one after another ("packed index" = place in that concatenation). With ring
// size R > 1 each document is cut into 2R chunks whose sizes differ by at most one; ring rank r holds chunks r and
// 2R-1-r, an early one and its mirror, so that under a causal mask every rank attends to about the same number of
// pairs (zigzag). The remainders rotate from document to document, so many short documents still fill all ranks
// evenly. Each ring share is then cut into U contiguous runs for the Ulysses ranks. Nothing is padded; a rank may
// hold no token at all.
//
// sp rank = ring_rank * U + ulysses_rank. "Share index" = place in a ring share; "local index" = place on an sp rank.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "sp/layout/range.h"

namespace ringside::sp {

// Consecutive tokens of one document; the tokens' positions in the document are [positions.begin, positions.end).
struct TokenRun {
  int64_t document = 0;
  Range positions;
  bool operator==(const TokenRun&) const = default;
};

class SequenceLayout {
 public:
  // document_lengths: tokens of each document, >= 0. ring_size, ulysses_size >= 1. Throws std::invalid_argument naming
  // the offending value.
  SequenceLayout(std::vector<int64_t> document_lengths, int64_t ring_size, int64_t ulysses_size);

  int64_t ring_size() const { return static_cast<int64_t>(shares_.size()); }
  int64_t ulysses_size() const { return ulysses_size_; }
  int64_t sp_size() const { return ring_size() * ulysses_size_; }
  int64_t num_documents() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_tokens() const { return cu_seqlens_.back(); }

  // [num_documents + 1] packed offsets of the true documents.
  const std::vector<int64_t>& cu_seqlens() const { return cu_seqlens_; }

  // The runs of a ring share in share order, adjacent chunks of a document joined.
  const std::vector<TokenRun>& ring_share(int64_t ring_rank) const { return shares_.at(ring_rank); }
  int64_t ring_share_tokens(int64_t ring_rank) const { return share_tokens_.at(ring_rank); }

  // The share indices that a Ulysses rank of ring_rank's share holds.
  Range ulysses_part(int64_t ring_rank, int64_t ulysses_rank) const;

  int64_t num_local_tokens(int64_t sp_rank) const;

  // Packed index and position within its document of each token of sp_rank, in local order.
  std::vector<int64_t> packed_indices(int64_t sp_rank) const;
  std::vector<int64_t> positions(int64_t sp_rank) const;

  // The local index of every token that sp_rank holds, by packed index; -1 for tokens of other ranks. [num_tokens]
  std::vector<int64_t> local_index_of_packed(int64_t sp_rank) const;

  // This rank's share of a field that has one value per packed token.
  template <class T>
  std::vector<T> shard(std::span<const T> packed, int64_t sp_rank) const {
    check_size(static_cast<int64_t>(packed.size()), num_tokens(), "packed field");
    std::vector<T> local;
    for (const int64_t i : packed_indices(sp_rank)) {
      local.push_back(packed[i]);
    }
    return local;
  }

  // The packed field again from the shards of all sp ranks in rank order.
  template <class T>
  std::vector<T> restore(std::span<const std::vector<T>> shards) const {
    check_size(static_cast<int64_t>(shards.size()), sp_size(), "number of shards");
    std::vector<T> packed(num_tokens());
    for (int64_t rank = 0; rank < sp_size(); ++rank) {
      const auto indices = packed_indices(rank);
      check_size(static_cast<int64_t>(shards[rank].size()), static_cast<int64_t>(indices.size()), "shard");
      for (std::size_t i = 0; i < indices.size(); ++i) {
        packed[indices[i]] = shards[rank][i];
      }
    }
    return packed;
  }

 private:
  static void check_size(int64_t got, int64_t expected, const char* what);

  std::vector<int64_t> lengths_;
  std::vector<int64_t> cu_seqlens_;
  int64_t ulysses_size_;
  std::vector<std::vector<TokenRun>> shares_;
  std::vector<int64_t> share_tokens_;
};

}  // namespace ringside::sp
