// Log-probs and entropies per token without a [tokens, vocab] tensor: logits exist for one chunk of
// rows at a time, forward and backward.
//
// Shapes: n = entries, E = hidden size, V = vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/params/weight.h"

namespace ringside::engine {

struct TokenScores {
  at::Tensor logprobs_n;  // fp32, or fp64 for double inputs; differentiable
  at::Tensor entropy_n;   // same dtype, nats, of the tempered distribution; differentiable
};

// Rows whose logits exist at once within the budget of bytes of hidden_nE's device; at least 1.
int64_t token_score_rows(const at::Tensor& hidden_nE, int64_t vocab_size);

// chunk_rows > 0: most rows whose logits exist at once. Gradients flow to hidden_nE and head_VE.
// Shapes: hidden_nE, head_VE: same dtype; targets_n: int64; temperature_n: fp32 or fp64, > 0.
// Throws: c10::Error that names the tensors when shapes, dtypes or devices do not match.
TokenScores token_scores(const at::Tensor& hidden_nE, const Weight& head_VE,
                         const at::Tensor& targets_n, const at::Tensor& temperature_n,
                         int64_t chunk_rows);

}  // namespace ringside::engine
