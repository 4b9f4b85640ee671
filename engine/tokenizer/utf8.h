// UTF-8 helpers of the tokenizer.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ringside::engine {

// Bytes of the well-formed character at the front of `text`; 0 when there is none.
// Source: Unicode 15, table 3-7.
std::size_t utf8_char_bytes(std::string_view text);

// Bytes of the extended grapheme cluster at the front of `text`; 0 when it is empty.
// Throws: std::invalid_argument when the cluster is not UTF-8.
// Source: Unicode Standard Annex 29, by utf8proc.
std::size_t grapheme_bytes(std::string_view text);

// Whether the whole text is UTF-8.
bool is_utf8(std::string_view text);

// The text with every maximal ill-formed piece replaced by U+FFFD, as Rust's from_utf8_lossy does.
std::string to_valid_utf8(std::string_view bytes);

// Normal form C.
// Throws: std::invalid_argument when `text` is not UTF-8.
std::string to_nfc(std::string_view text);

// Normal form KC.
// Throws: as to_nfc.
std::string to_nfkc(std::string_view text);

}  // namespace ringside::engine
