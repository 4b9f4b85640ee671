// Divergence of a trained decoder from a frozen one, at the loss entries of this rank. What the
// teacher says is kept between its pass and the student's: its final hidden states, from which its
// logits are computed again chunk by chunk beside the student's, or its most likely tokens.
//
// Shapes: n = loss entries of this rank, E = hidden size of the student, F = of the teacher, K =
// most likely tokens of the teacher.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/models/decoder.h"
#include "engine/ops/divergence.h"

namespace ringside::engine {

// Loss entries that a head scored, on the model's device.
struct ScoredEntries {
  at::Tensor hidden_nE;      // after the final norm; in the gathered order of tensor ranks
  at::Tensor temperature_n;  // in the entries' own
  EntryParts entries = {};   // of tensor-parallel ranks
};

// Divergence of each entry over the student's vocabulary, [n]; differentiable towards the student.
// teacher_hidden_nF: of the same entries; with tensor parallelism those of this rank's own rows.
// Both decoders score. Each tensor rank has its part of both heads and gets the divergence of all
// entries.
// Collective over: the tensor-parallel ranks; the shards of the two decoders; the student's also in
// the backward.
// Throws: as vocabulary_divergence().
at::Tensor divergence_from(const Decoder& student, const ScoredEntries& of_student,
                           const Decoder& teacher, const at::Tensor& teacher_hidden_nF,
                           const Divergence& divergence);

// The same over the teacher's most likely tokens of all entries and all others as one class.
// Collective over: the tensor-parallel ranks and the shard of the student, also in the backward.
// Throws: as logprobs_of_ids() and top_divergence().
at::Tensor divergence_from(const Decoder& student, const ScoredEntries& of_student,
                           const TopTokens& teacher, const Divergence& divergence);

// The K most likely tokens of a teacher, among the student's `words`, of all entries. Without
// autograd.
// Collective over: the tensor-parallel ranks and the shard of the teacher.
// Throws: as top_tokens().
TopTokens top_tokens_of(const Decoder& teacher, const ScoredEntries& of_teacher, int64_t k,
                        int64_t words);

}  // namespace ringside::engine
