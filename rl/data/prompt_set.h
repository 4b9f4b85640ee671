// Prompt set: the prompts of a file that a run samples, and their token ids. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/config/config.h"
#include "rl/data/image_prompts.h"
#include "rl/data/text_data.h"

namespace ringside::rl {

// How prompts become token ids: the longest allowed one, the handling of longer ones, special
// tokens before text.
struct PromptRules {
  int64_t max_tokens = 0;
  OnOverlong on_overlong = OnOverlong::kError;
  AddSpecialTokens add_special_tokens = AddSpecialTokens::kAuto;
  std::optional<ImageRules> images = {};  // none: prompts have no images
};
// rollout.max_prompt_tokens, data.on_overlong and data.add_special_tokens; with data.image_key the
// rules of images.
// Throws: as read_image_rules() with data.image_key.
PromptRules prompt_rules(const Config& config);

// The prompts of data files. They depend only on the files, the tokenizer and the configuration, so
// all workers and the trainer's evaluation see the same prompts at the same indices.
struct PromptSet {
  std::vector<Prompt> prompts;   // the prompts that are sampled, in the files' order
  std::vector<OrderPart> parts;  // their numbers and weights by entry of the list of files
  std::vector<std::string>
      problems;          // one sentence each, with file and line; with any, a run does not start
  int64_t lines = 0;     // prompts in the files
  int64_t overlong = 0;  // of these, longer than the limit
  int64_t longest = 0;   // tokens of the longest that is sampled, with those of images
  std::optional<ImageRules> images;  // if a prompt in the files has an image
};

// files: as data_file_entries() in rl/config/data_files.h.
// Throws: as scan_prompts.
PromptSet scan_prompt_set(const std::string& files, const Config& config,
                          const engine::Tokenizer& tokenizer);

// The same for callers that sample, which cannot continue with problems.
// Throws: std::runtime_error for the first problem too.
PromptSet load_prompt_set(const std::string& files, const Config& config,
                          const engine::Tokenizer& tokenizer);

// "3 of 900 prompts are longer than rollout.max_prompt_tokens = 512: dropped"; "" when none is.
std::string describe_overlong(const PromptSet& set, const PromptRules& rules);

// The prompt's token ids, by text_prompt_tokens() for text and without special tokens for rendered
// messages; the placeholders of images are expanded. With on_overlong truncate rules.max_tokens of
// them: added special tokens and the last of the text. A prompt with images is never truncated.
// Throws: std::runtime_error naming the prompt when it has no token, or too many and is not
// truncated; std::invalid_argument for a text that the tokenizer cannot encode, and as
// expand_placeholders().
std::vector<int64_t> prompt_ids(const Prompt& prompt, const PromptRules& rules,
                                const engine::Tokenizer& tokenizer);

// The problem of the template's markers under this tokenizer; "" when each marker is one token.
std::string marker_problem(ChatTemplate chat_template, const engine::Tokenizer& tokenizer);

}  // namespace ringside::rl
