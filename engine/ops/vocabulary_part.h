// Part of the vocabulary that a tensor-parallel rank computes with: some rows of the embedding and
// of the head. Scores over the whole vocabulary come from those over the parts.
//
// Shapes: n = entries, T = ranks.
// Source: Shoeybi et al. 2019 (Megatron-LM); the entropy by the chain rule of entropies.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "sp/layout/range.h"
#include "sp/mesh/communicator.h"

namespace ringside::engine {

// Copies share the communicator.
struct VocabularyPart {
  std::shared_ptr<sp::Communicator> ranks = nullptr;  // null: this rank has all words
  sp::Range words = {};                               // of this rank; may be empty
  int64_t all_words = 0;

  // Whether there are several ranks.
  bool is_cut() const { return ranks != nullptr && ranks->size() > 1; }

  // Place of each id among this rank's words; -1: another rank has it. Only of a cut.
  // Shapes: ids int64 [n] -> int64 [n].
  // Throws: on the CPU c10::Error on an id outside the vocabulary, the same on every rank.
  at::Tensor places_of(const at::Tensor& ids) const;
};

// Scores of entries over the words of one rank, or over all words.
// Shapes: [n], fp32 or fp64.
struct PartialScores {
  at::Tensor logprobs_n;  // of the targets
  at::Tensor entropy_n;   // nats
  at::Tensor lse_n;       // log-sum-exp of the tempered logits
};

// Scores over all words, in place of those over this rank's, in one exchange of four numbers an
// entry. With w_t = exp(lse_t - lse), the part of rank t in the distribution:
//   lse = log sum_t exp(lse_t),  entropy = sum_t w_t (entropy_t + lse - lse_t),
//   logprob = logprob_t + lse_t - lse on the rank that has the target.
// A rank without words has an lse of -inf.
// places_n: the targets as places_of() gives them; log-probs of targets elsewhere are not read.
// Collective over: part.ranks.
void merge_scores(const PartialScores& scores, const at::Tensor& places_n,
                  const VocabularyPart& part);

}  // namespace ringside::engine
