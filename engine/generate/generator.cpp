#include "engine/generate/generator.h"

#include <ATen/core/grad_mode.h>

#include <stdexcept>
#include <string>

#include "engine/generate/generation.h"

namespace ringside::engine {
namespace {

// Bytes of the cache that a completion needs when it is computed alone: its own, and a page of its
// prompt that it parts from.
int64_t sole_row_bytes(const Decoder& decoder, int64_t tokens) {
  const PagedCache cache(decoder.config(), decoder.context());
  return cache.row_bytes(tokens) + cache.row_bytes(1);
}

void check_images(const Decoder& decoder, const std::vector<std::vector<int64_t>>& prompts,
                  const GenerateOptions& options) {
  if (options.images.empty()) {
    return;
  }
  if (options.images.size() != prompts.size()) {
    throw std::invalid_argument("generate: " + std::to_string(prompts.size()) + " prompts, but " +
                                std::to_string(options.images.size()) + " lists of images");
  }
  const auto& vision = decoder.config().vision;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    std::vector<ImageSpan> spans;
    for (const PromptImageRows& image : options.images[i]) {
      if (!vision) {
        throw std::invalid_argument("generate: prompt " + std::to_string(i) +
                                    " has an image, and the model no vision tower");
      }
      spans.push_back(image.span);
      TORCH_CHECK(image.rows.rows_iE.size(0) == image.span.grid.tokens(vision->merge),
                  "generate: prompt ", i, " has an image of ",
                  image.span.grid.tokens(vision->merge), " tokens with ",
                  image.rows.rows_iE.size(0), " rows");
    }
    if (!spans.empty()) {
      token_positions(static_cast<int64_t>(prompts[i].size()), spans, vision->merge);
    }
  }
}

void check_begun(const std::vector<std::vector<int64_t>>& prompts, const SamplingParams& params,
                 const GenerateOptions& options) {
  if (options.begun.empty()) {
    return;
  }
  if (options.begun.size() != prompts.size()) {
    throw std::invalid_argument("generate: " + std::to_string(prompts.size()) + " prompts, but " +
                                std::to_string(options.begun.size()) + " begun completions");
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Completion& begun = options.begun[i];
    const int64_t most =
        options.max_new_tokens.empty() ? params.max_new_tokens : options.max_new_tokens[i];
    if (std::ssize(begun.ids) >= most || begun.ids.size() != begun.logprobs.size()) {
      throw std::invalid_argument(
          "generate: begun completion " + std::to_string(i) + " has " +
          std::to_string(begun.ids.size()) + " ids and " + std::to_string(begun.logprobs.size()) +
          " log-probs, expected equally many, below " + std::to_string(most));
    }
  }
}

void check_request(const Decoder& decoder, const std::vector<std::vector<int64_t>>& prompts,
                   const SamplingParams& params, const GenerateOptions& options) {
  check_sampling_params(params);
  if (decoder.stage() != whole_stage(decoder.config())) {
    throw std::invalid_argument(
        "generate: the decoder is a stage of a model, expected a whole one");
  }
  if (!options.seeds.empty() && options.seeds.size() != prompts.size()) {
    throw std::invalid_argument("generate: " + std::to_string(prompts.size()) + " prompts, but " +
                                std::to_string(options.seeds.size()) + " seeds");
  }
  const std::span<const int64_t> lengths = options.max_new_tokens;
  if (!lengths.empty() && lengths.size() != prompts.size()) {
    throw std::invalid_argument("generate: " + std::to_string(prompts.size()) + " prompts, but " +
                                std::to_string(lengths.size()) + " lengths of completions");
  }
  check_images(decoder, prompts, options);
  check_begun(prompts, params, options);
  if (options.max_rows < 0 || options.cache_bytes < 0) {
    throw std::invalid_argument("generate: max_rows and cache_bytes must not be negative, got " +
                                std::to_string(options.max_rows) + " and " +
                                std::to_string(options.cache_bytes));
  }
  const int64_t limit = num_positions(decoder.config());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) {
      throw std::invalid_argument("generate: prompt " + std::to_string(i) + " is empty");
    }
    const int64_t new_tokens = lengths.empty() ? params.max_new_tokens : lengths[i];
    if (new_tokens < 1 || new_tokens > params.max_new_tokens) {
      throw std::invalid_argument("generate: a completion of " + std::to_string(new_tokens) +
                                  " tokens at most, expected 1 to " +
                                  std::to_string(params.max_new_tokens));
    }
    const int64_t needed = static_cast<int64_t>(prompts[i].size()) + new_tokens;
    if (limit > 0 && needed > limit) {
      throw std::invalid_argument("generate: prompt " + std::to_string(i) + " of " +
                                  std::to_string(prompts[i].size()) + " tokens plus " +
                                  std::to_string(new_tokens) + " new ones exceeds " +
                                  std::to_string(limit) + " positions");
    }
    const int64_t bytes = options.cache_bytes == 0 ? 0 : sole_row_bytes(decoder, needed);
    if (bytes > options.cache_bytes) {
      throw std::invalid_argument("generate: keys and values of prompt " + std::to_string(i) +
                                  " with its completion take " + std::to_string(bytes) +
                                  " bytes, cache_bytes is " + std::to_string(options.cache_bytes));
    }
  }
}

}  // namespace

std::vector<Completion> generate(const Decoder& decoder,
                                 const std::vector<std::vector<int64_t>>& prompts,
                                 const SamplingParams& params, const GenerateOptions& options) {
  check_request(decoder, prompts, params, options);
  if (prompts.empty()) {
    return {};
  }
  const at::NoGradGuard no_grad;
  Generation generation(decoder, prompts, params, options);
  while (!generation.is_done() && !(options.should_stop && options.should_stop())) {
    generation.step();
  }
  return generation.take();
}

}  // namespace ringside::engine
