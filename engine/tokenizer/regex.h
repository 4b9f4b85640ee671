// The regular expressions of tokenizer.json, over PCRE2: Unicode classes and look-ahead.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ringside::engine {

// A piece of a text; pieces of one text are adjacent and cover it.
struct Piece {
  std::size_t begin;
  std::size_t end;
  bool is_match;
};

// Thread-safe. Classes are those of PCRE2's Unicode tables (Unicode 14 in 10.42): a letter assigned
// later is no \p{L} yet.
class Regex {
 public:
  // \s and \S mean Unicode's White_Space as in Hugging Face's engine (PCRE2's own also take
  // U+180E). Throws std::runtime_error that quotes the pattern when PCRE2 refuses it.
  explicit Regex(std::string_view pattern);

  // Cuts `text` (UTF-8) into matches, left to right, and what lies between. A match of nothing is a
  // piece of length 0. Throws std::runtime_error when PCRE2 gives up (its backtracking limit).
  std::vector<Piece> split(std::string_view text) const;

 private:
  std::string pattern_;
  std::shared_ptr<const void> code_;  // a pcre2_code
};

// A pattern that matches `text` itself.
std::string quote_pattern(std::string_view text);

}  // namespace ringside::engine
