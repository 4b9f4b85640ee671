// Divergences of a student's next-token distribution from a teacher's, without a [tokens, vocab]
// tensor: logits of both exist for one chunk of rows at a time, forward and backward. Gradients
// flow to the student alone.
//
// Notation: p = the student's distribution, q = the teacher's, both tempered; b = mixture.
//   reverse KL       KL(p || q)
//   forward KL       KL(q || p)
//   Jensen-Shannon   b KL(q || m) + (1 - b) KL(p || m), m = b q + (1 - b) p
// With a `part` the vocabulary is cut over tensor-parallel ranks. Heads have this rank's words; all
// else is the same on every rank, chunk_rows and the gradients of the results too. The gradient of
// hidden states is then this rank's part of it, to be summed over the ranks. Collective over:
// part.ranks, in the forward.
// Shapes: n = entries, E = hidden size of the student, F = of the teacher, V = vocabulary, K = most
// likely tokens of the teacher.
// Source: Agarwal et al. 2024 (On-policy distillation of language models), equation 1.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/ops/vocabulary_part.h"
#include "engine/params/weight.h"

namespace ringside::engine {

// Names what the ranks send each other for divergences, among a communicator's bytes.
inline constexpr const char* kDivergenceTag = "divergence";

enum class DivergenceKind { kReverseKl, kForwardKl, kJensenShannon };

// mixture: b, between 0 and 1, of Jensen-Shannon.
struct Divergence {
  DivergenceKind kind = DivergenceKind::kReverseKl;
  double mixture = 0.5;
};

// One side of a divergence: logits = hidden head^T / temperature.
// Shapes: hidden [n, E] and head [V, E] of one dtype; temperature [n] fp32 or fp64, > 0.
struct LogitSource {
  at::Tensor hidden_nE;
  Weight head_VE;
  at::Tensor temperature_n;
};

// Rows of a chunk whose logits, of student and teacher, with all that is computed from them, take
// at most chunk_bytes; at least 1. Doubles, which are for comparisons, get the rows of fp32.
int64_t divergence_rows(int64_t vocab_size, int64_t chunk_bytes);

// The divergence of each entry over the whole vocabulary, [n], fp32 or for doubles fp64. A teacher
// with more words than the student counts only the student's: its first V.
// n may be 0: the gradients are then zeros. part: of the student's words, which both heads have.
// Throws: c10::Error that names the tensors when shapes, dtypes or devices do not match.
at::Tensor vocabulary_divergence(const LogitSource& student, const LogitSource& teacher,
                                 const Divergence& divergence, int64_t chunk_rows,
                                 const VocabularyPart& part = {});

// Log-probs of K ids of each entry, [n, K], differentiable.
// Shapes: ids_nK int64, below V; K >= 1.
// Throws: c10::Error as above.
at::Tensor logprobs_of_ids(const LogitSource& source, const at::Tensor& ids_nK, int64_t chunk_rows,
                           const VocabularyPart& part = {});

// The most likely tokens of each entry, the first one first.
// Shapes: ids int64 [n, K], log-probs [n, K] in fp32, or for doubles fp64.
struct TopTokens {
  at::Tensor ids_nK;
  at::Tensor logprobs_nK;
};

// The K most likely tokens and their log-probs, among the first `words` words of the vocabulary.
// Without autograd. Throws: c10::Error as above, and for a K beyond the words.
TopTokens top_tokens(const LogitSource& source, int64_t k, int64_t words, int64_t chunk_rows,
                     const VocabularyPart& part = {});

// The divergence of each entry over K tokens and one class of all others: p and q with the mass of
// the other tokens added up. It is never above that over the vocabulary, and never negative.
// Differentiable with respect to the student's. The mass of all others counts as at least 1e-7.
// Shapes: log-probs [n, K] of the same tokens -> [n].
// Source: the class of others as in TRL 1.16 (add_tail_bucket).
at::Tensor top_divergence(const at::Tensor& student_nK, const at::Tensor& teacher_nK,
                          const Divergence& divergence);

}  // namespace ringside::engine
