// Regular expressions of tokenizer.json, by PCRE2.
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

// Character classes are those of Unicode 16 whatever the version of PCRE2's tables (Unicode 14 in
// 10.42), by newer_characters.h. A pattern that itself holds a character newer than Unicode 14 sees
// the text as it is.
// Thread safety: any thread.
class Regex {
 public:
  // The pattern is one of Hugging Face's engine: onig_pattern.h.
  // Throws: std::runtime_error quoting the pattern when it has no counterpart in PCRE2 or PCRE2
  // refuses it.
  explicit Regex(std::string_view pattern);

  // Splits `text` into matches, left to right, and the text between them. An empty match is a piece
  // of length 0. The text must be UTF-8, which is not checked.
  // Throws: std::runtime_error at PCRE2's backtracking limit.
  std::vector<Piece> split(std::string_view text) const;

 private:
  // The text has no character that PCRE2 does not know, but for those that the pattern names.
  std::vector<Piece> split_known(std::string_view text) const;

  std::string pattern_;
  bool names_newer_;
  std::shared_ptr<const void> code_;  // a pcre2_code
};

// The characters of Rust's \w, as members of a class.
inline constexpr std::string_view kRustWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D})";

// A pattern that matches exactly `text`.
std::string quote_pattern(std::string_view text);

}  // namespace ringside::engine
