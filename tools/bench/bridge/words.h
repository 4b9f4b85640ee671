// Synthetic weights for the benches: bf16 numbers distributed like a model's, the same in every
// run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace ringside::bench {

using Words = std::vector<uint16_t>;

// `count` draws of Normal(0, 0.02), cut to bf16.
inline Words normal_words(std::size_t count) {
  std::mt19937 rng(1);
  std::normal_distribution<float> weight(0.0F, 0.02F);
  Words out(count);
  for (uint16_t& w : out) {
    const float value = weight(rng);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    w = static_cast<uint16_t>(bits >> 16);
  }
  return out;
}

}  // namespace ringside::bench
