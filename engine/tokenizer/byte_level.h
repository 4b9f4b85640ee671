// GPT-2's byte alphabet: every byte is one printable character, so a text vocabulary can hold any
// bytes.
//
// Source: openai/gpt-2, encoder.py, bytes_to_unicode.
#pragma once

#include <string>
#include <string_view>

namespace ringside::engine {

// Each byte as its character, UTF-8.
std::string bytes_to_alphabet(std::string_view bytes);

// The bytes of a token. A token with a character outside the alphabet (an added token) is returned
// unchanged.
std::string alphabet_to_bytes(std::string_view token);

// GPT-2's split into words; ByteLevel uses it when use_regex is true.
inline constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace ringside::engine
