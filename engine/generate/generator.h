// Batched sampling from a decoder: the embedded stand-in for an inference server.
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
  std::vector<int64_t> ids;     // with the stop token, when one was drawn
  std::vector<float> logprobs;  // one per id, of the distribution sampled (sampler.h)
  FinishReason finish = FinishReason::kAborted;
};

struct GenerateOptions {
  // One per prompt, or empty: prompt i then draws from sequence i of params.seed.
  std::span<const uint64_t> seeds = {};
  // Asked before every token; true ends all unfinished completions as kAborted, with the tokens so
  // far.
  std::function<bool()> should_stop = {};
};

// One completion per prompt, in order. All prompts run as one batch, which the caller bounds; equal
// prompts are computed once and finished rows leave the batch. What a prompt draws depends on its
// seed and not on the batch, up to the rounding of differently shaped GEMMs. Blocks until done;
// thread-safe for reading threads while no one writes parameters. Throws std::invalid_argument on
// an empty prompt, a prompt longer than max_position_embeddings (when that is set) allows with
// max_new_tokens, seeds of another count, and bad params; c10::Error on an id outside the
// vocabulary.
std::vector<Completion> generate(const Decoder& decoder,
                                 const std::vector<std::vector<int64_t>>& prompts,
                                 const SamplingParams& params, const GenerateOptions& options = {});

}  // namespace ringside::engine
