// Log-probs and entropies per token without a [tokens, vocab] tensor: logits exist for one chunk of
// rows at a time, forward and backward.
//
// Shapes: n = entries, E = hidden size, V = vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ringside::engine {

struct TokenScores {
  at::Tensor logprobs_n;  // fp32, or fp64 for double inputs; differentiable
  at::Tensor entropy_n;   // same dtype, nats, of the tempered distribution; differentiable
};

// chunk_rows > 0: most rows whose logits exist at once. Gradients flow to hidden_nE and head_VE.
// Shapes: hidden_nE, head_VE: same dtype; targets_n: int64; temperature_n: fp32 or fp64, > 0.
// Throws: c10::Error on a shape mismatch.
TokenScores token_scores(const at::Tensor& hidden_nE, const at::Tensor& head_VE,
                         const at::Tensor& targets_n, const at::Tensor& temperature_n,
                         int64_t chunk_rows);

}  // namespace ringside::engine
