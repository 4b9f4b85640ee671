// Transposes and interleaving of matrices of words, in registers where the processor has wide ones.
// Thread safety: any thread, on memory of its own.
#pragma once

#include <cstdint>

namespace ringside::sp {

// A row-major matrix of 32-bit words: fp32, or pairs of bf16.
struct WordMatrix {
  const uint32_t* first;
  int64_t stride;  // between rows, in words
  int64_t rows, columns;
};

// to[c * to_stride + r] = from[r][c].
void transpose_words(const WordMatrix& from, uint32_t* to, int64_t to_stride);

// to[2 c] = even[c] and to[2 c + 1] = odd[c] for c < count: pairs of elements of 16 bits.
void interleave(const uint16_t* even, const uint16_t* odd, int64_t count, uint16_t* to);

}  // namespace ringside::sp
