// Added tokens, such as "<|im_end|>", which are found in the text before pre-tokenization.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::engine {

// One entry of added_tokens.
struct AddedToken {
  std::string content;
  int64_t id = 0;
  bool special = false;     // skipped by decode(skip_special)
  bool normalized = false;  // searched after normalization instead of before
};

// Finder of added tokens in a text; of several that begin at one place it takes the longest.
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

  std::vector<AddedToken> tokens_;  // longest first
  std::vector<bool> first_bytes_;   // true when a token begins with the byte
};

}  // namespace ringside::engine
