// Log-probs and entropies per token without a [tokens, vocab] tensor: logits exist for one chunk of
// rows at a time, forward and backward.
//
// Shapes: n = entries, E = hidden size, V = vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

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
// Shapes: hidden_nE, head_VE: same dtype; targets_n: int64, below V; temperature_n: fp32 or fp64,
// > 0. n may be 0.
// Throws: c10::Error that names the tensors when shapes, dtypes or devices do not match. On the CPU
// also on a target outside the vocabulary, which CUDA does not check.
TokenScores token_scores(const at::Tensor& hidden_nE, const Weight& head_VE,
                         const at::Tensor& targets_n, const at::Tensor& temperature_n,
                         int64_t chunk_rows);

}  // namespace ringside::engine
