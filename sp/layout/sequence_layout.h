// Sequence layout: the tokens of a packed micro-batch on each rank. Integers only, the same on
// every rank. Every token-aligned field is sharded and restored through this one object, so fields
// cannot disagree.
//
// The micro-batch is a forest of segments. Its tokens are packed in the forest's order ("packed
// index"). The placement assigns runs of tokens to ring ranks. Each ring share, in packed order, is
// cut into U contiguous runs for the Ulysses ranks. Nothing is padded; a rank may hold no token.
//
// sp rank = ring_rank * U + ulysses_rank. "Share index" = index in a ring share. "Local index" =
// index on an sp rank.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "sp/layout/placement.h"
#include "sp/layout/range.h"
#include "sp/layout/segment_forest.h"

namespace ringside::sp {

// Throws: std::out_of_range, every function that takes a rank, when the ring has no such rank.
// Thread safety: immutable.
class SequenceLayout {
 public:
  // Throws: std::invalid_argument, with both sizes, unless ring_size >= 1 and ulysses_size >= 1.
  SequenceLayout(SegmentForest forest, int64_t ring_size, int64_t ulysses_size,
                 Placement placement = Placement::kZigzag);

  // Plain documents of these lengths, placed in zigzag.
  // Throws: std::invalid_argument as above, and on a negative length.
  SequenceLayout(const std::vector<int64_t>& document_lengths, int64_t ring_size,
                 int64_t ulysses_size);

  const SegmentForest& forest() const { return forest_; }
  int64_t ring_size() const { return static_cast<int64_t>(shares_.size()); }
  int64_t ulysses_size() const { return ulysses_size_; }
  int64_t sp_size() const { return ring_size() * ulysses_size_; }
  int64_t num_tokens() const { return forest_.num_tokens(); }

  // The runs of a ring share in share order, which is packed order.
  const std::vector<TokenRun>& ring_share(int64_t ring_rank) const { return shares_.at(ring_rank); }
  int64_t ring_share_tokens(int64_t ring_rank) const { return share_tokens_.at(ring_rank); }

  // Packed indices of a run.
  Range packed(const TokenRun& run) const {
    const int64_t begin = forest_.packed(run.segment).begin;
    return {begin + run.offsets.begin, begin + run.offsets.end};
  }

  Balance balance() const { return balance_of(forest_, shares_); }

  // Share indices of one Ulysses rank of ring_rank's share.
  Range ulysses_part(int64_t ring_rank, int64_t ulysses_rank) const;

  // Tokens of a rank; sp_rank = ring rank x Ulysses ranks + Ulysses rank.
  int64_t num_local_tokens(int64_t sp_rank) const;

  // Packed index, and position within its document, of each token of sp_rank, in local order.
  std::vector<int64_t> packed_indices(int64_t sp_rank) const;
  std::vector<int64_t> positions(int64_t sp_rank) const;

  // Positions of a whole ring share, in share order.
  std::vector<int64_t> share_positions(int64_t ring_rank) const;

  // Local index on sp_rank by packed index; -1 for tokens of other ranks. [num_tokens]
  std::vector<int64_t> local_index_of_packed(int64_t sp_rank) const;

  // The shard of sp_rank of a field with one value per packed token, in local order.
  // Throws: std::invalid_argument when the field has another length.
  template <class T>
  std::vector<T> shard(std::span<const T> packed, int64_t sp_rank) const {
    check_size(static_cast<int64_t>(packed.size()), num_tokens(), "packed field");
    std::vector<T> local;
    for (const int64_t i : packed_indices(sp_rank)) {
      local.push_back(packed[i]);
    }
    return local;
  }

  // Inverse of shard(): the packed field from the shards of all sp ranks in rank order.
  // Throws: std::invalid_argument when there are more or fewer shards, or one has another length.
  template <class T>
  std::vector<T> restore(std::span<const std::vector<T>> shards) const {
    check_size(static_cast<int64_t>(shards.size()), sp_size(), "number of shards");
    std::vector<T> packed(num_tokens());
    for (int64_t rank = 0; rank < sp_size(); ++rank) {
      const auto indices = packed_indices(rank);
      check_size(static_cast<int64_t>(shards[rank].size()), static_cast<int64_t>(indices.size()),
                 "shard");
      for (std::size_t i = 0; i < indices.size(); ++i) {
        packed[indices[i]] = shards[rank][i];
      }
    }
    return packed;
  }

 private:
  static void check_size(int64_t got, int64_t expected, const char* what);

  SegmentForest forest_;
  int64_t ulysses_size_;
  std::vector<std::vector<TokenRun>> shares_;
  std::vector<int64_t> share_tokens_;
};

}  // namespace ringside::sp
