// Sampler: draws tokens from logits and returns the log-prob of each draw.
//
// Shapes: B = rows, V = vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ringside::engine {

// How tokens are drawn.
struct SamplingParams {
  double temperature = 1;  // 0: the most likely token
  double top_p = 1;        // keeps the smallest set of tokens with this probability
  int64_t top_k = 0;       // keeps this many of the most likely tokens; 0: all
  int64_t max_new_tokens = 0;
  std::vector<int64_t> stop_ids = {};
  uint64_t seed = 0;
};

// Checks the ranges of all fields.
// Throws: std::invalid_argument naming the field unless temperature >= 0, 0 < top_p <= 1, top_k >=
// 0 and max_new_tokens > 0.
void check_sampling_params(const SamplingParams& params);

// Whether top_p or top_k may leave tokens of such a vocabulary out.
bool truncates(const SamplingParams& params, int64_t vocabulary);

// Stream of uniform numbers of one sequence, addressed by token index. A sequence's draws depend
// only on its seed.
// Source: Philox, Salmon et al. 2011.
struct RandomStream {
  uint64_t seed = 0;
  uint64_t sequence = 0;
  // The number of the token with this index: in [0, 1), with 53 random bits.
  double uniform(uint64_t token) const;
};

// Log-probs of the sampling distribution: tempered, then cut to top_k, then to top_p, then
// renormalised; -inf outside the cut. Tokens tied with the last one kept by top_k are kept.
// Temperature 0 gives the untempered distribution, whose most likely token is drawn.
// Shapes: logits_BV in fp32 or fp64; returns [B, V] in their dtype.
// Source: Fan et al. 2018 (top-k); Holtzman et al. 2020 (top-p).
at::Tensor sampling_logprobs(const at::Tensor& logits_BV, const SamplingParams& params);

// One token for each row.
struct Draw {
  at::Tensor ids_B;       // int64
  at::Tensor logprobs_B;  // fp32 or fp64, of the drawn ids under sampling_logprobs()
  // If asked for and truncates(): the ids that could be drawn in each row, ascending. Else empty.
  std::vector<std::vector<int64_t>> kept = {};
};

// Inverts the cumulative distribution at uniform_B (fp64 in [0, 1), ignored at temperature 0). On
// the CPU in fp32 every row is one pass over its logits (row_draw.h).
// Shapes: as sampling_logprobs(); all on one device.
// records_kept: asks for Draw::kept.
// Blocks: until the device has computed the distribution, except at temperature 0.
// Throws: c10::Error on logits of which one is NaN or +inf.
Draw draw_tokens(const at::Tensor& logits_BV, const at::Tensor& uniform_B,
                 const SamplingParams& params, bool records_kept = false);

}  // namespace ringside::engine
