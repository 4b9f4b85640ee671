// Rotary position embedding in transformers' half-split layout: element i turns with element
// i + D/2. engine/ops/qk_norm_rope.h applies it.
//
// Shapes: s = tokens, D = head dim.
// Source: Su et al. 2021.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/nn/rope_scaling.h"
#include "engine/ops/qk_norm_rope.h"

namespace ringside::engine {

// What a token's angles are made of, for every position.
struct RopeFrequencies {
  at::Tensor inverse_d;    // [D/2], fp32: radians a position
  double magnitude = 1.0;  // factor on cos and sin: the attention factor of yarn and longrope
  // Pairs of components that RoPE turns, of heads that are turned in part: the factor is on their
  // cos and sin alone. -1: all.
  int64_t turned = -1;
};

// The frequencies, on the CPU, with transformers' roundings.
// Source: transformers, compute_default_rope_parameters and ROPE_INIT_FUNCTIONS.
RopeFrequencies rope_frequencies(const RopeSettings& settings);

// Angles, cos and sin in fp32, then cast to compute_dtype. transformers rounds to fp32 for every
// dtype, fp64 included, and trained models expect these angles.
// Shapes: positions_s: int64 [s], s may be 0.
RopeTables rope_tables(const RopeFrequencies& frequencies, const at::Tensor& positions_s,
                       at::ScalarType compute_dtype);

}  // namespace ringside::engine
