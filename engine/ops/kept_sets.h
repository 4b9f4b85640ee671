// Kept sets: the words that a sampler with top_p or top_k could have drawn, of each entry. Scores
// over them are those of the distribution that is renormalised over the set.
//
// Shapes: n = entries, m = words of all sets, c = rows of a chunk, V = words of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ringside::engine {

// The sets of all entries one after another.
struct KeptSets {
  std::vector<int64_t> begin = {};  // [n + 1] first word of each set, and m; empty: no set is known
  at::Tensor entry_m = {};          // int32: the entry of each word
  at::Tensor word_m = {};           // int32; -1: another rank has it

  // Whether scores are over sets, and not over the whole vocabulary.
  bool any() const { return !begin.empty(); }
};

// The same sets, on the host, with set order_n[i] in place i.
// Shapes: order_n int64 [n], a permutation.
KeptSets arranged(const KeptSets& kept, const at::Tensor& order_n);

// Lowers the logits of words outside of the sets so far that their probabilities are 0. They stay
// finite, so that 0 x log 0 is 0. The rows are those of the entries from `first` on.
// Shapes: logits_cV contiguous, of any floating-point dtype. Blocks: never.
void keep_only(const at::Tensor& logits_cV, int64_t first, const KeptSets& kept);

}  // namespace ringside::engine
