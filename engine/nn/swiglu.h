// The gated activation of the decoder's MLP (Shazeer 2020).
#pragma once

#include <ATen/core/Tensor.h>

namespace ringside::engine {

// silu(gate) * up of gate_up_s2F = [gate | up]; returns [s, F] in the same dtype. Differentiable;
// keeps only its input. Throws c10::Error unless the input is 2-D with an even number of columns.
at::Tensor swiglu(const at::Tensor& gate_up_s2F);

}  // namespace ringside::engine
