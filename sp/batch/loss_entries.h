// Loss entries of a document: which token scores which target. Torch-free.
//
// An entry names the token whose hidden state scores its target, and lives on that token's rank.
// Targets are chosen per document before sharding, so no target is lost at a shard edge. A token
// may have several entries. Other columns of an entry (log-probs, advantages, weights) belong to
// the caller, who finds them by the entry's index in the order (document, entry),
// MicroBatch::entry_index.
#pragma once

#include <cstdint>
#include <vector>

namespace ringside::sp {

// Columns of equal length, one row an entry.
struct LossEntries {
  std::vector<int64_t> source;  // scoring token: index in the document, or packed index
  std::vector<int64_t> target;  // token id
  std::vector<int64_t> sample;  // caller's number of the sequence; the same on every rank

  int64_t size() const { return static_cast<int64_t>(source.size()); }
  // Appends an entry.
  void add(int64_t source_token, int64_t target_id, int64_t sample_number = 0);

  // Throws: std::invalid_argument naming the column whose length differs from source's.
  void check() const;
};

}  // namespace ringside::sp
