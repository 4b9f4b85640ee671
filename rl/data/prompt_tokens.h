// Token ids of a prompt's text, with the special tokens that its tokenizer puts before a text.
// Torch-free.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "rl/config/config.h"

namespace ringside::rl {

struct PromptTokens {
  std::vector<int64_t> ids;
  int64_t special = 0;  // how many of the first were added
};

// The ids of a prompt that is text, as transformers' tokenizer(text) gives them, with two
// differences: with `add` auto a text that begins with the tokens does not get them again, and what
// the tokenizer puts after a text (an end token) is left out, because a completion follows.
// Throws: std::invalid_argument for a text that the tokenizer cannot encode.
PromptTokens text_prompt_tokens(std::string_view text, AddSpecialTokens add,
                                const engine::Tokenizer& tokenizer);

}  // namespace ringside::rl
