// Added tokens, such as "<|im_end|>", which are found in the text before pre-tokenization.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/regex.h"

namespace ringside::engine {

// One entry of added_tokens.
struct AddedToken {
  std::string content;
  int64_t id = 0;
  bool special = false;      // skipped by decode(skip_special)
  bool normalized = false;   // searched after normalization instead of before
  bool lstrip = false;       // the white space before it belongs to it
  bool rstrip = false;       // the white space after it belongs to it
  bool single_word = false;  // not found beside a letter, digit, mark or connector
};

// Finder of added tokens in a text; of several that begin at one place it takes the longest.
// Source: tokenizers 0.22, added_vocabulary.rs (find_matches).
// Thread safety: any thread.
class AddedTokenFinder {
 public:
  // Tokens with empty content are never found.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  // A piece of a text.
  struct Part {
    std::string_view text;
    std::optional<int64_t> id;  // set when this part is an added token
  };
  // Non-empty parts that together are `text`, as views of it.
  std::vector<Part> split(std::string_view text) const;

 private:
  const AddedToken* longest_at_front(std::string_view text) const;
  // Whether no character of a word is beside [begin, end).
  bool is_alone(std::string_view text, std::size_t begin, std::size_t end) const;

  std::vector<AddedToken> tokens_;  // longest first
  Regex word_;                      // one character of a word
  std::vector<bool> first_bytes_;   // true when a token begins with the byte
};

}  // namespace ringside::engine
