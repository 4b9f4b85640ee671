// Sampler from a decoder, which computes many completions together: the embedded alternative to an
// inference server.
//
// Shapes: s = tokens of prompt and completion but the last, L = layers with experts, K = experts a
// token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/generate/sampler.h"
#include "engine/images/positions.h"
#include "engine/models/decoder.h"
#include "engine/vision/vision_tower.h"

namespace ringside::engine {

// Tokens of one forward over prompts, which bounds the memory of its activations; a longer prompt
// is one forward.
inline constexpr int64_t kPrefillTokens = 8192;

enum class StopReason { kStop, kLength, kAborted };

// What was drawn for one prompt.
struct Completion {
  std::vector<int64_t> ids;     // includes the stop token, when one was drawn
  std::vector<float> logprobs;  // one per id, under the sampling distribution (sampler.h)
  StopReason finish = StopReason::kAborted;
  // With record_routes: the experts that each token but the last used in the layers with experts,
  // those of the prompt first, on the CPU. Undefined without.
  at::Tensor routes_sLK = {};
  // With record_kept, where the sampling is truncated: the ids that top_p and top_k left for each
  // drawn token, ascending. Empty without.
  std::vector<std::vector<int64_t>> kept = {};
};

// An image of a prompt, encoded.
struct PromptImageRows {
  ImageSpan span;  // its tokens in the prompt
  std::string id;  // equal for equal images
  EncodedImages rows;
};

// Options of one generate() call.
struct GenerateOptions {
  // One per prompt, or empty: prompt i then uses sequence i of params.seed.
  std::span<const uint64_t> seeds = {};
  // Tokens of each completion at most, 1 to params.max_new_tokens; or empty: that many for all.
  std::span<const int64_t> max_new_tokens = {};
  // What each completion has already: ids and logprobs, fewer than its tokens at most and without a
  // stop token. They are kept as they are, and the draws behind them are those of one run. Or
  // empty: nothing.
  std::span<const Completion> begun = {};
  // The images of each prompt, in order; or empty: no prompt has any. A placeholder's id elsewhere
  // is text, also one that is drawn.
  std::span<const std::vector<PromptImageRows>> images = {};
  // Called before every token. True ends all unfinished completions as kAborted with their tokens
  // so far.
  std::function<bool()> should_stop = {};
  // Called after each token, with the number of its completion and the completion so far, whose
  // last token it is: the completion's last one unless `finish` is kAborted. Without routes_sLK.
  // What it throws, generate() throws.
  std::function<void(std::size_t completion, const Completion& so_far)> on_token = {};
  // Completions bring routes_sLK, unless should_stop ended them before they began. The model has
  // experts.
  bool record_routes = false;
  bool record_kept = false;  // completions bring `kept`
  // Completions that are computed together; 0: all. As soon as one ends, the next begins.
  int64_t max_rows = 0;
  // Bytes for keys and values; 0: as many as needed. Where they do not suffice, the completions
  // that began last wait, and what they had is computed once more.
  int64_t cache_bytes = 0;
};

// One completion per prompt, in order. The tokens drawn for a prompt depend on its seed and not on
// what runs beside it, up to the rounding of products of other shapes. Equal prompts with equal
// images are computed once, and their completions share its keys and values.
// Blocks: until done.
// Throws: std::invalid_argument on a stage of a model, an empty prompt, a prompt longer than
// num_positions() of the model (when set) allows with max_new_tokens, one that cache_bytes cannot
// hold with max_new_tokens, a wrong number of seeds, lengths, begun completions or lists of images,
// a begun completion without room for a token, images for a model without a vision tower or as
// token_positions(), negative options, and bad params; c10::Error on rows of images that do not fit
// their spans, on an id outside the vocabulary (on CUDA an error of the device), and as
// draw_tokens(). Collective over: the shard of a sharded decoder. Thread safety: any number of
// threads while no thread writes parameters.
std::vector<Completion> generate(const Decoder& decoder,
                                 const std::vector<std::vector<int64_t>>& prompts,
                                 const SamplingParams& params, const GenerateOptions& options = {});

}  // namespace ringside::engine
