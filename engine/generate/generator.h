// Batched sampler from a decoder: the embedded alternative to an inference server.
//
// Shapes: s = tokens of prompt and completion but the last, L = layers with experts, K = experts a
// token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/generate/sampler.h"
#include "engine/models/decoder.h"

namespace ringside::engine {

enum class StopReason { kStop, kLength, kAborted };

// What was drawn for one prompt.
struct Completion {
  std::vector<int64_t> ids;     // includes the stop token, when one was drawn
  std::vector<float> logprobs;  // one per id, under the sampling distribution (sampler.h)
  StopReason finish = StopReason::kAborted;
  // With record_routes: the experts that each token but the last used in the layers with experts,
  // those of the prompt first, on the CPU. Undefined without.
  at::Tensor routes_sLK = {};
};

// Options of one generate() call.
struct GenerateOptions {
  // One per prompt, or empty: prompt i then uses sequence i of params.seed.
  std::span<const uint64_t> seeds = {};
  // Called before every token. True ends all unfinished completions as kAborted with their tokens
  // so far.
  std::function<bool()> should_stop = {};
  // Completions bring routes_sLK. The model has experts.
  bool record_routes = false;
};

// One completion per prompt, in order. All prompts run as one batch, which the caller bounds. Equal
// prompts are computed once; finished rows leave the batch. The tokens drawn for a prompt depend on
// its seed and not on the batch, up to the rounding of GEMMs of other shapes.
// Blocks: until done.
// Throws: std::invalid_argument on a stage of a model, an empty prompt, a prompt longer than
// num_positions() of the model (when set) allows with max_new_tokens, a wrong number of seeds, and
// bad params; c10::Error on an id outside the vocabulary (on CUDA an error of the device), and as
// draw_tokens(). Collective over: the shard of a sharded decoder. Thread safety: any number of
// threads while no thread writes parameters.
std::vector<Completion> generate(const Decoder& decoder,
                                 const std::vector<std::vector<int64_t>>& prompts,
                                 const SamplingParams& params, const GenerateOptions& options = {});

}  // namespace ringside::engine
