#include "engine/tokenizer/newer_characters.h"

#include <algorithm>
#include <cstdint>

namespace ringside::engine {
namespace {

constexpr uint8_t kLeadOfThree = 0xE0,
                  kLeadOfFour = 0xF0;  // all newer characters have 3 or 4 bytes

// The value of the character of `bytes` (3 or 4) bytes at the front of `text`.
char32_t value_at(std::string_view text, std::size_t bytes) {
  char32_t value = static_cast<uint8_t>(text[0]) & (bytes == 3 ? 0x0Fu : 0x07u);
  for (std::size_t i = 1; i < bytes; ++i) {
    value = value << 6 | (static_cast<uint8_t>(text[i]) & 0x3Fu);
  }
  return value;
}

void write_at(std::string& text, std::size_t at, std::size_t bytes, char32_t value) {
  for (std::size_t i = bytes; i-- > 1; value >>= 6) {
    text[at + i] = static_cast<char>(0x80u | (value & 0x3Fu));
  }
  text[at] = static_cast<char>((bytes == 3 ? kLeadOfThree : kLeadOfFour) | value);
}

const NewerCharacters* find_range(char32_t character) {
  const auto table = newer_characters();
  const auto found = std::ranges::lower_bound(table, character, {}, &NewerCharacters::last);
  return found == table.end() || character < found->first ? nullptr : &*found;
}

// The next newer character from `at` on, which moves there; nullptr at the end.
const NewerCharacters* next_newer(std::string_view text, std::size_t& at, std::size_t& bytes) {
  for (; at < text.size(); ++at) {
    const auto lead = static_cast<uint8_t>(text[at]);
    bytes = lead >= kLeadOfFour ? 4 : 3;
    if (lead < kLeadOfThree || at + bytes > text.size()) {
      continue;
    }
    if (const NewerCharacters* found = find_range(value_at(text.substr(at), bytes))) {
      return found;
    }
  }
  return nullptr;
}

}  // namespace

bool has_newer_characters(std::string_view text) {
  std::size_t at = 0, bytes = 0;
  return next_newer(text, at, bytes) != nullptr;
}

std::optional<std::string> with_stand_ins(std::string_view text) {
  std::size_t at = 0, bytes = 0;
  const NewerCharacters* found = next_newer(text, at, bytes);
  if (found == nullptr) {
    return std::nullopt;
  }
  std::string result(text);
  for (; found != nullptr; found = next_newer(text, at, bytes)) {
    write_at(result, at, bytes, found->stand_in);
    at += bytes;
  }
  return result;
}

}  // namespace ringside::engine
