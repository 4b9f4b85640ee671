#include "rl/chat/markers.h"

#include <algorithm>
#include <array>

namespace ringside::rl {
namespace {

// Python's white space beyond one byte: U+0085, U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029,
// U+202F, U+205F, U+3000.
constexpr std::array<std::string_view, 19> kWideSpaces = {
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
    "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
    "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
    "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};

bool is_narrow_space(char byte) {
  return (byte >= '\t' && byte <= '\r') || (byte >= '\x1C' && byte <= ' ');
}

}  // namespace

MarkerPlace first_marker(std::string_view text, std::initializer_list<std::string_view> markers) {
  MarkerPlace first;
  for (const std::string_view marker : markers) {
    const std::size_t at = text.find(marker);
    if (at < first.at) {
      first = {at, marker};
    }
  }
  return first;
}

std::size_t begun_marker_bytes(std::string_view text,
                               std::initializer_list<std::string_view> markers) {
  std::size_t most = 0;
  for (const std::string_view marker : markers) {
    for (std::size_t bytes = std::min(marker.size() - 1, text.size()); bytes > most; --bytes) {
      if (text.ends_with(marker.substr(0, bytes))) {
        most = bytes;
        break;
      }
    }
  }
  return most;
}

std::size_t space_bytes_at_front(std::string_view text) {
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const std::string_view rest = text.substr(bytes);
    if (is_narrow_space(rest.front())) {
      ++bytes;
      continue;
    }
    const auto* wide = std::find_if(kWideSpaces.begin(), kWideSpaces.end(),
                                    [&](std::string_view one) { return rest.starts_with(one); });
    if (wide == kWideSpaces.end()) {
      break;
    }
    bytes += wide->size();
  }
  return bytes;
}

std::size_t space_bytes_at_end(std::string_view text) {
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const std::string_view rest = text.substr(0, text.size() - bytes);
    if (is_narrow_space(rest.back())) {
      ++bytes;
      continue;
    }
    const auto* wide = std::find_if(kWideSpaces.begin(), kWideSpaces.end(),
                                    [&](std::string_view one) { return rest.ends_with(one); });
    if (wide == kWideSpaces.end()) {
      break;
    }
    bytes += wide->size();
  }
  return bytes;
}

std::string_view python_strip(std::string_view text) {
  text.remove_prefix(space_bytes_at_front(text));
  text.remove_suffix(space_bytes_at_end(text));
  return text;
}

}  // namespace ringside::rl
