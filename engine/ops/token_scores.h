// Log-probs and entropies per token without a [tokens, vocab] tensor: logits exist for one chunk of
// rows at a time, forward and backward.
//
// Shapes: n = entries, E = hidden size, V = vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "engine/ops/kept_sets.h"
#include "engine/ops/vocabulary_part.h"
#include "engine/params/weight.h"

namespace ringside::engine {

// One number for each entry.
struct TokenScores {
  at::Tensor logprobs_n;  // fp32, or fp64 for double inputs; differentiable
  at::Tensor entropy_n;   // same dtype, nats, of the tempered distribution; differentiable
};

// Most bytes that exist at once for one logit: the logit itself and what is computed from it.
// hidden: dtype and device of the hidden states.
int64_t bytes_per_logit(const at::TensorOptions& hidden);

// Rows of a chunk whose logits, with all that is computed from them, take at most chunk_bytes; at
// least 1. Doubles, which are for comparisons, get the rows of fp32.
int64_t token_score_rows(const at::TensorOptions& hidden, int64_t vocab_size, int64_t chunk_bytes);

// Log-probs of the targets, and entropies, of softmax(hidden head^T / temperature). chunk_rows > 0:
// most rows whose logits exist at once. Gradients flow to hidden_nE and head_VE.
// part: of a vocabulary cut over tensor-parallel ranks; the head has this rank's words, and all
// else is the same on every rank, the gradients of the scores too. The gradient of hidden_nE is
// then this rank's part of it, to be summed over the ranks. kept: with any(), both scores are those
// of the distribution over each entry's set; its words are ids, on the device. Shapes: hidden_nE,
// head_VE: same dtype; targets_n: int64, below V; temperature_n: fp32 or fp64, > 0. n may be 0.
// Collective over: part.ranks, in the forward. Throws: c10::Error that names the tensors when
// shapes, dtypes or devices do not match. On the CPU also on a target outside the vocabulary, which
// CUDA does not check.
TokenScores token_scores(const at::Tensor& hidden_nE, const Weight& head_VE,
                         const at::Tensor& targets_n, const at::Tensor& temperature_n,
                         int64_t chunk_rows, const VocabularyPart& part = {}, KeptSets kept = {});

namespace operators {

// In these c = rows of a chunk; acc = the dtype of sums: fp64 for doubles, otherwise fp32.

// Log-prob of each row's target, entropy and log-sum-exp of softmax(logits / temperature).
// Shapes: logits [c, V]; targets [c] int64; temperature and the results [c] in acc. On CUDA all are
// contiguous.
// Throws: c10::Error on arguments that are not so. On the CPU also on a target outside the
// vocabulary, which CUDA does not check.
void token_scores(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                  const at::Tensor& temperature_c, const at::Tensor& logprobs_c,
                  const at::Tensor& entropy_c, const at::Tensor& lse_c);

// Replaces the logits by their gradient. g_logprobs and g_entropy are the results' gradients
// divided by the temperature.
// Shapes: as token_scores; lse and entropy are its results.
void token_scores_backward(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                           const at::Tensor& temperature_c, const at::Tensor& lse_c,
                           const at::Tensor& entropy_c, const at::Tensor& g_logprobs_c,
                           const std::optional<at::Tensor>& g_entropy_c);

// token_scores_backward() for some words of a vocabulary: lse and entropy are those over all of it.
// A target is the place among these words, or -1.
void token_scores_part_backward(const at::Tensor& logits_cV, const at::Tensor& targets_c,
                                const at::Tensor& temperature_c, const at::Tensor& lse_c,
                                const at::Tensor& entropy_c, const at::Tensor& g_logprobs_c,
                                const std::optional<at::Tensor>& g_entropy_c);

}  // namespace operators
}  // namespace ringside::engine
