// CUDA kernels of the token scores. kernel_types.h says what holds for all launchers.
#pragma once

#include "engine/ops/kernel_types.h"

namespace ringside::engine {

// Rows of contiguous logits; all other arrays have one element a row, in acc.
struct ScoreArgs {
  void* logits = nullptr;
  const int64_t* targets = nullptr;
  const void* temperature = nullptr;
  int64_t rows = 0;
  int64_t vocab = 0;
};
// operators::token_scores.
cudaError_t token_scores_cuda(const Types& types, const ScoreArgs& args, void* logprobs,
                              void* entropy, void* lse, cudaStream_t stream);

// Results of token_scores and their gradients, one element a row, in acc.
struct ScoreGrads {
  const void* lse = nullptr;
  const void* entropy = nullptr;
  const void* g_logprobs = nullptr;
  const void* g_entropy = nullptr;  // nullptr: zero
};
// operators::token_scores_backward. Writes the gradient in place of the logits.
cudaError_t token_scores_backward_cuda(const Types& types, const ScoreArgs& args,
                                       const ScoreGrads& grads, cudaStream_t stream);

}  // namespace ringside::engine
