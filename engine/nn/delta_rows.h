// Input of the gated delta rule (delta_rule.h).
//
// Shapes: S = rows, k = key heads, h = value heads (a multiple of k), K, V = their dims.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ringside::engine {

// The rows of packed documents.
struct DeltaRows {
  at::Tensor q_SkK;  // undefined: only the end states are computed
  at::Tensor k_SkK;
  at::Tensor v_ShV;    // q, k and v share a dtype
  at::Tensor g_Sh;     // log of the decay, <= 0; accumulation dtype
  at::Tensor beta_Sh;  // accumulation dtype
};

struct DeltaSizes {
  int64_t key_heads, heads, key_dim, value_dim;
  // Value heads of a key head.
  int64_t repeats() const { return heads / key_heads; }
};

// Of rows that fit each other.
inline DeltaSizes sizes_of(const DeltaRows& rows) {
  return {rows.k_SkK.size(1), rows.v_ShV.size(1), rows.k_SkK.size(2), rows.v_ShV.size(2)};
}

// The accumulation dtype: fp64 for doubles, else fp32.
inline at::ScalarType delta_sums_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace ringside::engine
