// Draw of one token from the logits of one row, on the CPU: what draw_tokens() does, without a
// tensor for each step and without sorting the vocabulary.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/generate/sampler.h"

namespace ringside::engine {

struct DrawnToken {
  int64_t id = 0;
  float logprob = 0;  // under sampling_logprobs()
};

// weights: working memory of `vocabulary` elements. kept: receives the ids that top_k and top_p
// keep, ascending; null: not recorded.
// Throws: c10::Error on logits of which one is NaN or +inf.
DrawnToken draw_from_row(const float* logits, int64_t vocabulary, double uniform,
                         const SamplingParams& params, float* weights,
                         std::vector<int64_t>* kept = nullptr);

}  // namespace ringside::engine
