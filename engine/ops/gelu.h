// GELU in its three forms. LibTorch's, on every device.
#pragma once

#include <ATen/core/Tensor.h>

namespace ringside::engine {

enum class GeluForm {
  kExact,  // x * normal distribution function of x
  kTanh,   // its approximation by tanh
  kQuick,  // x * sigmoid(1.702 x)
};

// GELU of each element. Differentiable; only the input is kept.
// Shapes: any; the result is like x.
// Throws: c10::Error unless x is floating-point.
// Source: Hendrycks and Gimpel 2016.
at::Tensor gelu(const at::Tensor& x, GeluForm form);

}  // namespace ringside::engine
