#include "engine/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "engine/tokenizer/utf8.h"

namespace ringside::engine {

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)),
      word_("[" + std::string(kRustWord) + "]"),
      first_bytes_(256, false) {
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

bool AddedTokenFinder::is_alone(std::string_view text, std::size_t begin, std::size_t end) const {
  const auto is_word = [&](std::string_view character) {
    return !character.empty() && word_.split(character).front().is_match;
  };
  return !is_word(last_character(text.substr(0, begin))) &&
         !is_word(text.substr(end, utf8_char_bytes(text.substr(end))));
}

std::vector<AddedTokenFinder::Part> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Part> parts;
  std::size_t done = 0;  // end of the last part
  for (std::size_t i = 0; i < text.size();) {
    const AddedToken* token = longest_at_front(text.substr(i));
    if (token == nullptr) {
      ++i;
      continue;
    }
    std::size_t begin = i, end = i + token->content.size();
    i = end;
    if (token->single_word && !is_alone(text, begin, end)) {
      continue;
    }
    if (token->lstrip) {  // white space that an earlier token took stays there
      begin = std::max(done, without_space_at_end(text.substr(0, begin)));
    }
    if (token->rstrip) {
      end += space_at_front(text.substr(end));
    }
    if (begin > done) {
      parts.push_back({text.substr(done, begin - done), std::nullopt});
    }
    parts.push_back({text.substr(begin, end - begin), token->id});
    done = end;
  }
  if (done < text.size()) {
    parts.push_back({text.substr(done), std::nullopt});
  }
  return parts;
}

}  // namespace ringside::engine
