// Mask of a block for ATen's kernel, and the keys of the block that a query sees.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

namespace ringside::sp {

// Query i sees key j where low <= i - j < high; both are counted from the first rows of the block.
// As it is made: every query sees every key.
struct VisibleKeys {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 4;
  int64_t low = -kUnlimited;
  int64_t high = kUnlimited;

  bool operator==(const VisibleKeys&) const = default;
};

inline constexpr VisibleKeys kEarlierKeys{0, VisibleKeys::kUnlimited};  // causal: keys 0..i

struct BlockMask {
  VisibleKeys visible;
  // Added to the scores, [n, m] in fp64: 0 or -inf. Undefined in fp32, and for blocks that are
  // full, or causal and square.
  at::Tensor additive_nm;
};

// The mask of a block of n queries and m keys that is computed in `dtype`.
BlockMask block_mask(const VisibleKeys& visible, int64_t n, int64_t m, at::ScalarType dtype);

}  // namespace ringside::sp
