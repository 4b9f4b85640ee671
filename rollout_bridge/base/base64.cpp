#include "rollout_bridge/base/base64.h"

#include <algorithm>
#include <array>

namespace ringside::bridge {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// The value of each digit, -1 for other characters.
constexpr std::array<int8_t, 256> digit_values() {
  std::array<int8_t, 256> values{};
  values.fill(-1);
  for (std::size_t i = 0; i < kDigits.size(); ++i) {
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<int8_t>(i);
  }
  return values;
}

}  // namespace

std::string base64(std::span<const uint8_t> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t given = std::min<std::size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8 | (k < given ? bytes[i + k] : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += k <= given ? kDigits[group >> (18 - 6 * k) & 63U] : '=';
    }
  }
  return text;
}

std::optional<std::vector<uint8_t>> from_base64(std::string_view text) {
  static constexpr std::array<int8_t, 256> kValues = digit_values();
  if (text.size() % 4 != 0) {
    return std::nullopt;
  }
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::vector<uint8_t> bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t i = 0; i < text.size(); i += 4) {
    const std::size_t digits = i + 4 == text.size() ? 4 - padding : 4;
    uint32_t group = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      const int value = k < digits ? kValues[static_cast<unsigned char>(text[i + k])] : 0;
      if (value < 0) {
        return std::nullopt;
      }
      group = group << 6 | static_cast<uint32_t>(value);
    }
    // Bits behind the last byte are 0.
    if (digits < 4 && (group & (digits == 3 ? 0xFFU : 0xFFFFU)) != 0) {
      return std::nullopt;
    }
    for (std::size_t k = 0; k + 1 < digits; ++k) {
      bytes.push_back(static_cast<uint8_t>(group >> (16 - 8 * k)));
    }
  }
  return bytes;
}

}  // namespace ringside::bridge
