// Which document goes into which micro-batch of which data-parallel rank. Pure integers: every rank
// computes the same plan from the same lengths, and compares its hash before the step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ringside::sp {

// micro_batches[dp_rank][m] lists document indices, ordered by length, longest first, then by
// index. Every dp rank has the same number of micro-batches; some may be empty.
struct PackingPlan {
  std::vector<std::vector<std::vector<int64_t>>> micro_batches;

  int64_t num_micro_batches() const {
    return micro_batches.empty() ? 0 : static_cast<int64_t>(micro_batches.front().size());
  }

  // FNV-1a over all indices and shapes: equal plans have equal hashes.
  uint64_t hash() const;
};

// Longest-first into the least-filled bin. The number of bins per dp rank is the smallest for which
// every bin holds at most tokens_per_micro_batch tokens; a document longer than that gets a bin of
// its own. lengths >= 0, dp_size >= 1, tokens_per_micro_batch >= 1, else std::invalid_argument.
PackingPlan pack_documents(std::span<const int64_t> lengths, int64_t dp_size,
                           int64_t tokens_per_micro_batch);

}  // namespace ringside::sp
