// Arithmetic for loops that become vector instructions: without branches and calls.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace ringside::sp {

// e^x for x up to 88, with an error of two units in the last place; 0 below -87, where the result
// would not be a normal number.
// Source: the polynomial of Cephes' expf (Moshier).
[[gnu::always_inline]] inline float exp_of(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  constexpr float kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f;
  const float bounded = std::min(std::max(x, -87.0f), 88.0f);
  const float shifted = bounded * 1.44269504088896341f + kRound;
  const float whole = shifted - kRound;
  const float r = (bounded - whole * kLog2High) - whole * kLog2Low;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;  // 2^whole
  const float result = y * std::bit_cast<float>(power);
  return x < -87.0f ? 0.0f : result;
}

// The number that a bf16, as a word of 16 bits, stands for.
[[gnu::always_inline]] inline float widened(uint16_t bf16) {
  return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16);
}

// The nearest bf16, ties to even; NaN stays NaN.
[[gnu::always_inline]] inline uint16_t rounded_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(value != value ? 0x7fc0u : rounded);
}

}  // namespace ringside::sp
