// Attention of the new token of one row over its pages, for one key/value head, on the CPU.
//
// Shapes: g = query heads of the key/value head, D = head dim, t = kPageTokens.
#pragma once

#include <cstdint>

namespace ringside::engine {

// Elements: float, double, or uint16_t for bf16. Sums: float, double for doubles.
template <class Element, class Sum>
struct RowOfHead {
  const Element* q_gD;
  const Element* new_key_D;
  const Element* new_value_D;
  Element* keys;        // of page 0: [D, t]
  Element* values;      // of page 0: [t, D]
  int64_t page_stride;  // elements between two pages
  const int64_t* pages;
  int64_t begin, end;  // places that are seen; the new token's is end - 1
  const Sum* sinks_g;  // nullptr: none
  Sum scale;
  int64_t queries, dim;
  Element* out_gD;
};

// Sums that attend_row() needs as working memory.
int64_t row_memory(int64_t dim, int64_t end);

// Writes the new key and value and computes out. `memory`: row_memory() sums.
void attend_row(const RowOfHead<float, float>& row, float* memory);
void attend_row(const RowOfHead<uint16_t, float>& row, float* memory);
void attend_row(const RowOfHead<double, double>& row, double* memory);

}  // namespace ringside::engine
