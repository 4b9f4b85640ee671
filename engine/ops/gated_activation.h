// Gated activations of an MLP: a function of the gate times the projection beside it. Each forward
// and each backward is one operator; only the input is kept.
//
// Shapes: s = tokens, F = MLP size. gate_up [s, 2F] is [gate | up] unless it says otherwise; the
// results are [s, F] in the same dtype.
// Throws: c10::Error unless the input is floating-point, 2-D and of an even number of columns, and
// a limit positive.
#pragma once

#include <ATen/core/Tensor.h>

namespace ringside::engine {

// silu(gate) * up. Differentiable.
// Source: Shazeer 2020.
at::Tensor swiglu(const at::Tensor& gate_up_s2F);

// gelu(gate) * up with the tanh form of GELU. Differentiable.
// Source: Shazeer 2020; Hendrycks and Gimpel 2016.
at::Tensor geglu(const at::Tensor& gate_up_s2F);

// (up + 1) * gate * sigmoid(alpha * gate) with gate at most `limit` and up within -limit and limit.
// Columns of gate and up take turns. Differentiable; a clamped number has no gradient.
// Source: gpt-oss, as in transformers 5.23 (GptOssExperts).
at::Tensor clamped_swiglu(const at::Tensor& gate_up_s2F, double limit, double alpha);

namespace operators {

// The functions above, and their gradients.
// Shapes: dy [s, F]; a gradient is [s, 2F].
at::Tensor swiglu(const at::Tensor& gate_up);
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);
at::Tensor geglu(const at::Tensor& gate_up);
at::Tensor geglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);
at::Tensor clamped_swiglu(const at::Tensor& gate_up, double limit, double alpha);
at::Tensor clamped_swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, double limit,
                                   double alpha);

}  // namespace operators
}  // namespace ringside::engine
