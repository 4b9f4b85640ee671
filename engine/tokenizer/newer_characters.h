// Characters that are newer than PCRE2's tables: Unicode 15.0 to 16.0, 10,301 of them (emoji, CJK
// extensions H and I, new scripts). A regular expression sees an older character in place of each,
// of the same general category, script and binary properties, so \p{L} and [^\s\p{L}\p{N}] mean the
// same as in Hugging Face's engine, whose tables are those of Unicode 16.
//
// Not covered: \p{...} of scripts that are new or that had no such character before, 38 older
// characters that became Alphabetic, and literal ranges of characters in a pattern, where the older
// character may be inside and the newer one outside; below U+10000 it is the nearest one, so that
// ranges of whole scripts hold.
// Source: the tables of the Python package regex 2024.11.6, by tools/newer_characters.py.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ringside::engine {

struct NewerCharacters {
  char32_t first;
  char32_t last;
  char32_t stand_in;  // for all of them; as many bytes of UTF-8
};

// In order.
std::span<const NewerCharacters> newer_characters();

// Whether a text (UTF-8) has a newer character.
bool has_newer_characters(std::string_view text);

// The text with each newer character replaced by its stand-in; nullopt when it has none. Every
// character keeps its place.
std::optional<std::string> with_stand_ins(std::string_view text);

}  // namespace ringside::engine
