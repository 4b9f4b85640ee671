#include "rl/data/prompt_tokens.h"

#include <algorithm>

namespace ringside::rl {

PromptTokens text_prompt_tokens(std::string_view text, AddSpecialTokens add,
                                const engine::Tokenizer& tokenizer) {
  PromptTokens tokens{tokenizer.encode(text), 0};
  const std::vector<int64_t>& before = tokenizer.special_tokens().before;
  const bool has_them = std::ranges::mismatch(before, tokens.ids).in1 == before.end();
  if (add == AddSpecialTokens::kFalse || (add == AddSpecialTokens::kAuto && has_them)) {
    return tokens;
  }
  tokens.ids.insert(tokens.ids.begin(), before.begin(), before.end());
  tokens.special = static_cast<int64_t>(before.size());
  return tokens;
}

}  // namespace ringside::rl
