// Checks that text is UTF-8 (RFC 3629).
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace ringside::bridge {

// Length in bytes of the UTF-8 character at the front of `text`, which is not empty. 0: there is
// none, as the bytes are an overlong form, a surrogate, above U+10FFFF, or cut short.
std::size_t utf8_character_bytes(std::string_view text);

// Position of the first byte of `text` that is not UTF-8; nullopt when all of it is.
// Thread safety: pure.
std::optional<std::size_t> first_byte_not_utf8(std::string_view text);

}  // namespace ringside::bridge
