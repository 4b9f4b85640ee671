// Packing plan: the documents of each micro-batch of each data-parallel rank. Integers only. Every
// rank computes the same plan from the same lengths and compares its hash before the step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ringside::sp {

// micro_batches[dp_rank][m] lists document indices, longest document first, then by index. Every dp
// rank has the same number of micro-batches; some may be empty.
struct PackingPlan {
  std::vector<std::vector<std::vector<int64_t>>> micro_batches;
  // Of the documents of micro-batch m, the same on every dp rank; empty: 0.
  std::vector<int64_t> kinds = {};
  // Of micro-batch m.
  int64_t kind(std::size_t m) const { return kinds.empty() ? 0 : kinds.at(m); }

  int64_t num_micro_batches() const {
    return micro_batches.empty() ? 0 : static_cast<int64_t>(micro_batches.front().size());
  }

  // FNV-1a over all indices, shapes and kinds. Equal plans have equal hashes.
  uint64_t hash() const;
};

// Packs documents of these lengths, in tokens, longest-first into the least-filled bin. The number
// of bins per dp rank is the smallest for which every bin holds at most tokens_per_micro_batch
// tokens. A longer document gets its own bin.
// Throws: std::invalid_argument unless lengths >= 0, dp_size >= 1 and tokens_per_micro_batch >= 1.
PackingPlan pack_documents(std::span<const int64_t> lengths, int64_t dp_size,
                           int64_t tokens_per_micro_batch);

}  // namespace ringside::sp
