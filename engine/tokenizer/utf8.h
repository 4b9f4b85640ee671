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

// The character at the end of a text that is UTF-8; "" when it is empty.
std::string_view last_character(std::string_view text);

// Bytes of Unicode's white space (White_Space) at the front of a text that is UTF-8.
std::size_t space_at_front(std::string_view text);

// Bytes of a text that is UTF-8 before the white space at its end.
std::size_t without_space_at_end(std::string_view text);

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

// Normal form D.
// Throws: as to_nfc.
std::string to_nfd(std::string_view text);

// Normal form KD.
// Throws: as to_nfc.
std::string to_nfkd(std::string_view text);

// Every character in lower case (Unicode 16), by itself: a final sigma is no special case, as in
// Hugging Face.
// Throws: std::invalid_argument when `text` is not UTF-8.
std::string to_lower(std::string_view text);

}  // namespace ringside::engine
