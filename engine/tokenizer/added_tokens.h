// Tokens that are found in the text before anything else looks at it: "<|im_end|>" and the like.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::engine {

struct AddedToken {
  std::string content;
  int64_t id = 0;
  bool special = false;     // left out by decode(skip_special)
  bool normalized = false;  // looked for after normalization rather than before
};

// Finds the given texts; where several begin at one place, the longest. Thread-safe.
class AddedTokenFinder {
 public:
  // Tokens with empty content are never found.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  struct Part {
    std::string_view text;
    std::optional<int64_t> id;  // of the token that this part is
  };
  // Non-empty parts that make up `text`.
  std::vector<Part> split(std::string_view text) const;

 private:
  const AddedToken* longest_at_front(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // longest first
  std::vector<bool> first_bytes_;   // whether any token begins with the byte
};

}  // namespace ringside::engine
