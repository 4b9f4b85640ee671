// Rotary position embedding in transformers' half-split layout: element i turns with element
// i + D/2. engine/ops/qk_norm_rope.h applies it.
//
// A position has one component, or several (time, height and width; row and column of a patch), of
// which each frequency uses one. Equal components give the tables of one, to the bit.
//
// Shapes: s = tokens, D = head dim, c = components of a position.
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
  // Of positions with several components: int64 [D/2], the component that each frequency uses.
  at::Tensor component_d = {};
};

// The frequencies, on the CPU, with transformers' roundings.
// Source: transformers, compute_default_rope_parameters and ROPE_INIT_FUNCTIONS.
RopeFrequencies rope_frequencies(const RopeSettings& settings);

// RopeFrequencies::component_d of these sections, on the CPU. Pairs that RoPE does not turn use the
// first component.
// pairs: D/2 of the heads. Shapes: returns int64 [pairs].
// Throws: c10::Error when the sections have more frequencies than there are pairs.
// Source: transformers, apply_multimodal_rotary_pos_emb (Qwen2-VL) and apply_interleaved_mrope
// (Qwen3-VL).
at::Tensor section_components(const RopeSections& sections, int64_t pairs);

// Angles, cos and sin in fp32, then cast to compute_dtype. transformers rounds to fp32 for every
// dtype, fp64 included, and trained models expect these angles.
// Shapes: positions: int64 [s], or [c, s] where the frequencies say which component each uses; s
// may be 0.
// Throws: c10::Error on positions of several components for frequencies of one.
RopeTables rope_tables(const RopeFrequencies& frequencies, const at::Tensor& positions,
                       at::ScalarType compute_dtype);

}  // namespace ringside::engine
