#include "engine/tokenizer/precompiled.h"

#include <stdexcept>

#include "engine/tokenizer/utf8.h"

namespace ringside::engine {
namespace {

constexpr std::size_t kLongestCluster = 5;  // bytes of a cluster that is looked up as a whole

[[noreturn]] void damaged(const std::string& problem) {
  throw std::runtime_error("normalizer Precompiled: precompiled_charsmap " + problem);
}

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') {
    return c - 'A';
  }
  if (c >= 'a' && c <= 'z') {
    return c - 'a' + 26;
  }
  if (c >= '0' && c <= '9') {
    return c - '0' + 52;
  }
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

std::string from_base64(std::string_view text) {
  while (text.ends_with('=')) {
    text.remove_suffix(1);
  }
  std::string bytes;
  bytes.reserve(text.size() * 3 / 4);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int digit = base64_digit(c);
    if (digit < 0) {
      damaged("is not base64");
    }
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes.push_back(static_cast<char>(bits >> count & 0xFF));
    }
  }
  return bytes;
}

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) {
    value = value << 8 | static_cast<uint8_t>(bytes[i]);
  }
  return value;
}

// Fields of a unit of Darts-clone's double array.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) == 1; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t label_of(uint32_t unit) { return unit & (0x80000000u | 0xFFu); }
uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

}  // namespace

CharacterMap::CharacterMap(std::string_view charsmap) {
  const std::string bytes = from_base64(charsmap);
  const std::size_t trie_bytes = bytes.size() < 4 ? 0 : little_endian(bytes);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - 4) {
    damaged("is cut short, or does not begin with the size of a trie");
  }
  for (std::size_t at = 4; at < 4 + trie_bytes; at += 4) {
    trie_.push_back(little_endian(std::string_view(bytes).substr(at, 4)));
  }
  replacements_ = bytes.substr(4 + trie_bytes);
  if (!is_utf8(replacements_)) {
    damaged("has replacements that are not UTF-8");
  }
}

uint32_t CharacterMap::unit(std::size_t index) const {
  if (index >= trie_.size()) {
    damaged("has a trie that leads out of its array");
  }
  return trie_[index];
}

bool CharacterMap::replace(std::string_view part, std::string& result) const {
  std::size_t node = offset_of(unit(0));
  for (const char c : part) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte == 0) {
      return false;
    }
    node ^= byte;
    const uint32_t here = unit(node);
    if (label_of(here) != byte) {
      return false;
    }
    node ^= offset_of(here);
    if (has_leaf(here)) {
      const std::size_t begin = value_of(unit(node));
      if (begin > replacements_.size()) {
        damaged("has a trie that leads out of its replacements");
      }
      result += replacements_.substr(begin, replacements_.find('\0', begin) - begin);
      return true;
    }
  }
  return false;
}

std::string CharacterMap::normalize(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const std::string_view cluster = text.substr(0, grapheme_bytes(text));
    text.remove_prefix(cluster.size());
    if (cluster.size() <= kLongestCluster && replace(cluster, result)) {
      continue;
    }
    for (std::size_t at = 0; at < cluster.size();) {
      const std::string_view character = cluster.substr(at, utf8_char_bytes(cluster.substr(at)));
      if (!replace(character, result)) {
        result += character;
      }
      at += character.size();
    }
  }
  return result;
}

}  // namespace ringside::engine
