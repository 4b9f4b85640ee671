// Regular expressions of tokenizer.json over PCRE2, with Unicode classes and look-ahead.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::engine {

// A piece of a text. The pieces of one text are adjacent and cover it.
struct Piece {
  std::size_t begin;
  std::size_t end;
  bool is_match;
};

// Character classes are those of PCRE2's Unicode tables (Unicode 14 in 10.42); a letter assigned
// later is not in \p{L}.
// Thread safety: any thread.
class Regex {
 public:
  // \s and \S mean Unicode's White_Space, as in Hugging Face's engine (PCRE2's own also include
  // U+180E).
  // Throws: std::runtime_error quoting the pattern when PCRE2 refuses it.
  explicit Regex(std::string_view pattern);

  // Splits `text` into matches, left to right, and the text between them. An empty match is a piece
  // of length 0. The text must be UTF-8, which is not checked.
  // Throws: std::runtime_error at PCRE2's backtracking limit.
  std::vector<Piece> split(std::string_view text) const;

 private:
  std::string pattern_;
  std::shared_ptr<const void> code_;  // a pcre2_code
};

// A pattern that matches exactly `text`.
std::string quote_pattern(std::string_view text);

}  // namespace ringside::engine
