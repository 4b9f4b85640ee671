// Batched sampler from a decoder: the embedded alternative to an inference server.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/generate/sampler.h"
#include "engine/models/decoder.h"

namespace ringside::engine {

enum class FinishReason { kStop, kLength, kAborted };

struct Completion {
  std::vector<int64_t> ids;     // includes the stop token, when one was drawn
  std::vector<float> logprobs;  // one per id, under the sampling distribution (sampler.h)
  FinishReason finish = FinishReason::kAborted;
};

struct GenerateOptions {
  // One per prompt, or empty: prompt i then uses sequence i of params.seed.
  std::span<const uint64_t> seeds = {};
  // Called before every token. True ends all unfinished completions as kAborted with their tokens
  // so far.
  std::function<bool()> should_stop = {};
};

// One completion per prompt, in order. All prompts run as one batch, which the caller bounds. Equal
// prompts are computed once; finished rows leave the batch. The tokens drawn for a prompt depend on
// its seed and not on the batch, up to the rounding of GEMMs of other shapes.
// Blocks: until done.
// Throws: std::invalid_argument on an empty prompt, a prompt longer than num_positions() of the
// model (when set) allows with max_new_tokens, a wrong number of seeds, and bad params; c10::Error
// on an id outside the vocabulary. Thread safety: any number of threads while no thread writes
// parameters.
std::vector<Completion> generate(const Decoder& decoder,
                                 const std::vector<std::vector<int64_t>>& prompts,
                                 const SamplingParams& params, const GenerateOptions& options = {});

}  // namespace ringside::engine
