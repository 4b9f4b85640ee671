// Rotary position embedding (Su et al. 2021) in transformers' half-split layout: element i turns
// with element i + D/2. qk_norm_rope.h applies it. Shapes: s = tokens, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "engine/nn/rope_scaling.h"

namespace ringside::engine {

// cos and sin of every token's angles, shared by all layers of one forward.
struct RopeTables {
  at::Tensor cos_s1d;  // [s, 1, D/2], compute dtype
  at::Tensor sin_s1d;
};

// Inverse frequencies [D/2] in fp32.
// Source: transformers, compute_default_rope_parameters and _compute_llama3_parameters, with the
// same roundings.
at::Tensor rope_inverse_frequencies(int64_t head_dim, double theta,
                                    const std::optional<Llama3RopeScaling>& scaling);

// Angles, cos and sin in fp32, then cast to compute_dtype. transformers rounds to fp32 for every
// dtype, fp64 included, and trained models expect these angles.
// Shapes: positions_s: int64 [s], s may be 0.
RopeTables rope_tables(const at::Tensor& inverse_frequencies_d, const at::Tensor& positions_s,
                       at::ScalarType compute_dtype);

}  // namespace ringside::engine
