#include "engine/tokenizer/byte_level.h"

#include <array>
#include <cstdint>
#include <map>

#include "engine/tokenizer/utf8.h"

namespace ringside::engine {
namespace {

struct Alphabet {
  std::array<std::string, 256> character;
  std::map<std::string, char, std::less<>> byte;
};

bool is_printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Printable bytes map to the Latin-1 character of their value, the others to U+0100 and up, in
// order.
const Alphabet& alphabet() {
  static const Alphabet kAlphabet = [] {
    Alphabet result;
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const int code = is_printable(byte) ? byte : next++;
      std::string text;
      if (code < 0x80) {
        text = static_cast<char>(code);
      } else {
        text = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
      }
      result.byte[text] = static_cast<char>(byte);
      result.character[static_cast<std::size_t>(byte)] = std::move(text);
    }
    return result;
  }();
  return kAlphabet;
}

}  // namespace

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) {
    text += alphabet().character[static_cast<uint8_t>(byte)];
  }
  return text;
}

std::string alphabet_to_bytes(std::string_view token) {
  std::string bytes;
  for (std::string_view rest = token; !rest.empty();) {
    const std::size_t size = utf8_char_bytes(rest);
    const auto found = alphabet().byte.find(rest.substr(0, size));
    if (size == 0 || found == alphabet().byte.end()) {
      return std::string(token);
    }
    bytes += found->second;
    rest.remove_prefix(size);
  }
  return bytes;
}

}  // namespace ringside::engine
