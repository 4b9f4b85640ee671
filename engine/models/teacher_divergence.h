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

// Divergence of each entry over the student's vocabulary, [n]; differentiable towards the student.
// hidden_nE, teacher_hidden_nF: after the final norm, of the same entries. Both decoders score, and
// have their whole vocabulary.
// Collective over: the shards of the two decoders, the student's also in the backward.
// Throws: as vocabulary_divergence().
at::Tensor divergence_from(const Decoder& student, const at::Tensor& hidden_nE,
                           const at::Tensor& temperature_n, const Decoder& teacher,
                           const at::Tensor& teacher_hidden_nF, const Divergence& divergence);

// The same over the teacher's most likely tokens and all others as one class.
// Collective over: the shard of the student, also in the backward.
// Throws: as logprobs_of_ids() and top_divergence().
at::Tensor divergence_from(const Decoder& student, const at::Tensor& hidden_nE,
                           const at::Tensor& temperature_n, const TopTokens& teacher,
                           const Divergence& divergence);

// The K most likely tokens of a teacher, among the student's `words`. Without autograd.
// Collective over: the shard of the teacher.
// Throws: as top_tokens().
TopTokens top_tokens_of(const Decoder& teacher, const at::Tensor& hidden_nF,
                        const at::Tensor& temperature_n, int64_t k, int64_t words);

}  // namespace ringside::engine
