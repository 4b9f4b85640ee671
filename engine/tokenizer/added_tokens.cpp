#include "engine/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

namespace ringside::engine {

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), first_bytes_(256, false) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) {
    return a.content.size() > b.content.size();
  });
  for (const AddedToken& token : tokens_) {
    first_bytes_[static_cast<uint8_t>(token.content[0])] = true;
  }
}

const AddedToken* AddedTokenFinder::longest_at_front(std::string_view text) const {
  if (!first_bytes_[static_cast<uint8_t>(text[0])]) {
    return nullptr;
  }
  for (const AddedToken& token : tokens_) {
    if (text.starts_with(token.content)) {
      return &token;
    }
  }
  return nullptr;
}

std::vector<AddedTokenFinder::Part> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Part> parts;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const AddedToken* token = longest_at_front(text.substr(i));
    if (token == nullptr) {
      ++i;
      continue;
    }
    if (i > begin) {
      parts.push_back({text.substr(begin, i - begin), std::nullopt});
    }
    parts.push_back({text.substr(i, token->content.size()), token->id});
    i += token->content.size();
    begin = i;
  }
  if (begin < text.size()) {
    parts.push_back({text.substr(begin), std::nullopt});
  }
  return parts;
}

}  // namespace ringside::engine
