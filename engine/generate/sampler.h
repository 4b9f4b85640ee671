// Draws tokens from logits and says with which log-probability each was drawn.
// Shapes: B = rows, V = vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ringside::engine {

struct SamplingParams {
  double temperature = 1;  // 0: the most likely token
  double top_p = 1;        // keep the smallest set of tokens that holds this probability
  int64_t top_k = 0;       // keep this many of the most likely tokens; 0: all
  int64_t max_new_tokens = 0;
  std::vector<int64_t> stop_ids = {};
  uint64_t seed = 0;
};

// Throws std::invalid_argument naming the field unless temperature >= 0, 0 < top_p <= 1, top_k >= 0
// and max_new_tokens > 0.
void check_sampling_params(const SamplingParams& params);

// A stream of uniform numbers per sequence (Philox, Salmon et al. 2011), addressed by token index:
// what a sequence draws depends on nothing but its seed.
struct RandomStream {
  uint64_t seed = 0;
  uint64_t sequence = 0;
  // In [0, 1), with 53 random bits.
  double uniform(uint64_t token) const;
};

// Log-probabilities [B, V] (fp32, or fp64 for doubles) of the distribution that is sampled:
// tempered, then cut to top_k, then to top_p, then renormalised; -inf outside the cut. Temperature
// 0 is the untempered distribution, of which sampling takes the most likely token. Tokens tied with
// the last kept by top_k are kept.
at::Tensor sampling_logprobs(const at::Tensor& logits_BV, const SamplingParams& params);

struct Draw {
  at::Tensor ids_B;       // int64
  at::Tensor logprobs_B;  // fp32 or fp64, of the drawn ids under sampling_logprobs()
};

// Inverts the cumulative distribution at uniform_B (fp64 in [0, 1), ignored at temperature 0).
// Throws c10::Error on logits that are not finite.
Draw draw_tokens(const at::Tensor& logits_BV, const at::Tensor& uniform_B,
                 const SamplingParams& params);

}  // namespace ringside::engine
