// UTF-8, as far as a tokenizer needs it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ringside::engine {

// Bytes of the well-formed character at the front of `text`, 0 when there is none (Unicode 15,
// table 3-7).
std::size_t utf8_char_bytes(std::string_view text);

bool is_utf8(std::string_view text);

// The same text with every maximal ill-formed piece replaced by U+FFFD, as Rust's from_utf8_lossy
// does it.
std::string to_valid_utf8(std::string_view bytes);

// Normal form C. `text` must be UTF-8, else std::invalid_argument.
std::string to_nfc(std::string_view text);

}  // namespace ringside::engine
