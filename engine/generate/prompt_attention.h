// Causal attention inside one prompt, for the prefill of generation.
//
// Shapes: n = tokens, H = query heads, K = key/value heads, D = head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/nn/attention_backend.h"

namespace ringside::engine {

// Not differentiable. Sums are in fp32, in fp64 for doubles; the result is rounded once.
// Shapes: returns [H, n, D] in q's dtype.
at::Tensor attend_prompt(const AttentionSpec& spec, const at::Tensor& q_HnD,
                         const at::Tensor& k_KnD, const at::Tensor& v_KnD);

}  // namespace ringside::engine
