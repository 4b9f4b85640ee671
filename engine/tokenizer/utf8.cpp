#include "engine/tokenizer/utf8.h"

#include <utf8proc.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>

namespace ringside::engine {
namespace {

struct Prefix {
  std::size_t bytes;  // length of the longest piece that could begin a character
  bool complete;
};

uint8_t byte_at(std::string_view text, std::size_t i) { return static_cast<uint8_t>(text[i]); }

// Length announced by a leading byte; 0 for a byte that cannot lead.
std::size_t announced_bytes(uint8_t lead) {
  if (lead < 0x80) {
    return 1;
  }
  if (lead >= 0xC2 && lead <= 0xDF) {
    return 2;
  }
  if (lead >= 0xE0 && lead <= 0xEF) {
    return 3;
  }
  return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

// After some leading bytes the second byte's range is narrower: no overlong forms, no surrogates,
// no values above 0x10FFFF.
bool is_second_byte(uint8_t lead, uint8_t second) {
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return second >= low && second <= high;
}

Prefix first_piece(std::string_view text) {
  const uint8_t lead = byte_at(text, 0);
  const std::size_t bytes = announced_bytes(lead);
  if (bytes == 0) {
    return {1, false};
  }
  for (std::size_t i = 1; i < bytes; ++i) {
    const bool follows = i < text.size() && (i == 1 ? is_second_byte(lead, byte_at(text, 1))
                                                    : (byte_at(text, i) & 0xC0) == 0x80);
    if (!follows) {
      return {i, false};
    }
  }
  return {bytes, true};
}

// Bytes of the character at the front of `rest`.
std::size_t decoded(std::string_view rest, utf8proc_int32_t& character) {
  const utf8proc_ssize_t bytes =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(rest.data()),
                       static_cast<utf8proc_ssize_t>(rest.size()), &character);
  if (bytes < 0) {
    throw std::invalid_argument("a text is not UTF-8");
  }
  return static_cast<std::size_t>(bytes);
}

// Lower case, of Unicode 15 and 16 too. Source: UnicodeData.txt 16.0.
utf8proc_int32_t lower_case(utf8proc_int32_t c) {
  if (c >= 0x10D50 && c <= 0x10D65) {  // Garay
    return c + 0x20;
  }
  switch (c) {
    case 0x1C89:
    case 0xA7CC:
    case 0xA7DA:
      return c + 1;
    case 0xA7CB:
      return 0x264;
    case 0xA7DC:
      return 0x19B;
    default:
      return utf8proc_tolower(c);
  }
}

bool is_white_space(std::string_view character) {
  utf8proc_int32_t c = 0;
  decoded(character, c);
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::string mapped(std::string_view text, int options) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                             static_cast<utf8proc_option_t>(options));
  if (size < 0) {
    throw std::invalid_argument(std::string("cannot normalize text: ") + utf8proc_errmsg(size));
  }
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, std::free);
  return {reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size)};
}

}  // namespace

std::size_t utf8_char_bytes(std::string_view text) {
  if (text.empty()) {
    return 0;
  }
  const Prefix piece = first_piece(text);
  return piece.complete ? piece.bytes : 0;
}

std::size_t grapheme_bytes(std::string_view text) {
  if (text.empty()) {
    return 0;
  }
  utf8proc_int32_t before = 0;
  utf8proc_int32_t state = 0;
  std::size_t end = decoded(text, before);
  while (end < text.size()) {
    utf8proc_int32_t next = 0;
    const std::size_t bytes = decoded(text.substr(end), next);
    if (utf8proc_grapheme_break_stateful(before, next, &state)) {
      break;
    }
    end += bytes;
    before = next;
  }
  return end;
}

std::string_view last_character(std::string_view text) {
  std::size_t at = text.size();
  while (at > 0 && (byte_at(text, --at) & 0xC0) == 0x80) {
  }
  return text.substr(at);
}

std::size_t space_at_front(std::string_view text) {
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const std::string_view character = text.substr(bytes, utf8_char_bytes(text.substr(bytes)));
    if (!is_white_space(character)) {
      break;
    }
    bytes += character.size();
  }
  return bytes;
}

std::size_t without_space_at_end(std::string_view text) {
  while (!text.empty() && is_white_space(last_character(text))) {
    text.remove_suffix(last_character(text).size());
  }
  return text.size();
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = utf8_char_bytes(text);
    if (bytes == 0) {
      return false;
    }
    text.remove_prefix(bytes);
  }
  return true;
}

std::string to_valid_utf8(std::string_view bytes) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string valid;
  valid.reserve(bytes.size());
  while (!bytes.empty()) {
    const Prefix piece = first_piece(bytes);
    valid += piece.complete ? bytes.substr(0, piece.bytes) : kReplacement;
    bytes.remove_prefix(piece.bytes);
  }
  return valid;
}

std::string to_nfc(std::string_view text) {
  return mapped(text, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
}

std::string to_nfkc(std::string_view text) {
  return mapped(text, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
}

std::string to_nfd(std::string_view text) {
  return mapped(text, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
}

std::string to_nfkd(std::string_view text) {
  return mapped(text, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
}

std::string to_lower(std::string_view text) {
  constexpr utf8proc_int32_t kDottedCapitalI = 0x130;  // the one whose lower case is two characters
  std::string lower;
  lower.reserve(text.size());
  for (utf8proc_int32_t character = 0; !text.empty();) {
    text.remove_prefix(decoded(text, character));
    std::array<utf8proc_uint8_t, 4> bytes{};
    const auto size = utf8proc_encode_char(lower_case(character), bytes.data());
    lower.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(size));
    if (character == kDottedCapitalI) {
      lower += "\u0307";
    }
  }
  return lower;
}

}  // namespace ringside::engine
