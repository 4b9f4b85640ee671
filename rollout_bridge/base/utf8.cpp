#include "rollout_bridge/base/utf8.h"

namespace ringside::bridge {

std::size_t utf8_character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) {
    return 1;
  }
  const std::size_t bytes = byte(0) < 0xC2   ? 0
                            : byte(0) < 0xE0 ? 2
                            : byte(0) < 0xF0 ? 3
                            : byte(0) < 0xF5 ? 4
                                             : 0;
  if (bytes > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) {
      return 0;
    }
  }
  // An overlong form, a surrogate, or above U+10FFFF.
  const bool wrong = (byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xED && byte(1) >= 0xA0) ||
                     (byte(0) == 0xF0 && byte(1) < 0x90) || (byte(0) == 0xF4 && byte(1) >= 0x90);
  return wrong ? 0 : bytes;
}

std::optional<std::size_t> first_byte_not_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t bytes = utf8_character_bytes(text.substr(i));
    if (bytes == 0) {
      return i;
    }
    i += bytes;
  }
  return std::nullopt;
}

}  // namespace ringside::bridge
