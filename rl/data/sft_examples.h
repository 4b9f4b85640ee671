// Supervised examples as token ids with a mask of learned tokens. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/data/image_fields.h"
#include "rl/data/image_prompts.h"
#include "rl/data/text_data.h"
#include "sp/batch/document.h"

namespace ringside::rl {

struct TokenizedExample {
  std::vector<int64_t> ids;
  std::vector<bool> learned;  // one per id; the first is false, because nothing precedes it
  std::vector<PlacedImage> images = {};
  // Number of ids that are learned.
  int64_t learned_tokens() const;
};

// Tokenizes one example. {"prompt", "completion"}: the prompt is text_prompt_tokens(), and the
// completion, which gets no special tokens, is learned. It ends with an
// end-of-sequence id; eos.front() is added if the text does not end with one. A conversation: the
// ids of the rendered text as one call of the tokenizer gives them. Every token that holds a byte
// of what the assistant said, and its end marker, is learned, as in transformers' assistant mask.
// Throws: std::runtime_error for an empty prompt, nothing to learn, a template marker that is no
// token of the tokenizer, and with the model's template for a tokenizer that changes the text; and
// what ChatFormat and plain_messages() throw.
TokenizedExample tokenize_example(const SftExample& example, const engine::Tokenizer& tokenizer,
                                  const std::vector<int64_t>& eos, ChatFormat& chat);

// Expands the placeholders of an example's images, in order.
// Throws: as expand_placeholders(); std::invalid_argument for a placeholder that would be learned.
void place_images(TokenizedExample& example, std::span<const PromptImage> images,
                  const ImageRules& rules);

// Longest document of supervised fine-tuning, in ids, and the key that says so.
struct SftLimit {
  int64_t ids = 0;
  // Ids that the key does not count: 1 for train.tokens_per_micro_batch, because the last id is
  // only a target and takes no place in a micro-batch.
  int64_t uncounted = 0;
  std::string key;  // "data.max_length = 512"
};
// data.max_length, or where that is 0 train.tokens_per_micro_batch. A reward model reads the last
// id too.
SftLimit sft_limit(const Config& config);
// The error of a document with more ids, under data.on_overlong error.
std::string overlong_document(const std::string& place, int64_t ids, const SftLimit& limit);

// How many of the first `ids` are text of `head`: their bytes, less those of a character that is
// not complete, are a beginning of it.
std::size_t tokens_within(const engine::Tokenizer& tokenizer, const std::vector<int64_t>& ids,
                          std::string_view head);

// A document with a loss entry for each learned token, at the token before it. The last id is only
// a target. image_merge: patches a side of an image's token, for a document with the fields of
// add_image_fields(), which all documents of a run with images have; 0: without.
sp::Document make_sft_document(const TokenizedExample& example, int64_t image_merge = 0);

}  // namespace ringside::rl
