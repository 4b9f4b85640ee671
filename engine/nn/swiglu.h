// Gated activations of the decoder's MLP.
//
// Source: Shazeer 2020; clamped_swiglu(): gpt-oss.
#pragma once

#include <ATen/core/Tensor.h>

namespace ringside::engine {

// silu(gate) * up of gate_up_s2F = [gate | up]. Differentiable; keeps only its input.
// Shapes: returns [s, F] in the same dtype.
// Throws: c10::Error unless the input is floating-point, 2-D and of an even number of columns.
at::Tensor swiglu(const at::Tensor& gate_up_s2F);

// gelu(gate) * up with the tanh form of GELU; otherwise as swiglu().
at::Tensor geglu(const at::Tensor& gate_up_s2F);

// GPT-OSS: columns of gate and up take turns. With gate at most 7 and up within -7 and 7:
// (up + 1) * gate * sigmoid(1.702 gate). Otherwise as swiglu().
at::Tensor clamped_swiglu(const at::Tensor& gate_up_s2F);

}  // namespace ringside::engine
