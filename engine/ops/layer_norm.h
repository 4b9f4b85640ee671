// Layer norm with bias: (x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last dimension.
//
// It is LibTorch's, on every device. fp32 and fp64 are normed as they are. Lower precisions are
// normed in fp32, and rounded once, behind the bias.
//
// Shapes: x is [..., D], weight and bias [D], their values of x's dtype and on its device.
// Source: Ba, Kiros and Hinton 2016.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/params/weight.h"

namespace ringside::engine {

// The norm of x. Differentiable in x, weight and bias; the gradients of the latter two are summed
// in fp32 or wider.
// Throws: c10::Error that names the tensors when shapes, dtypes or devices do not match.
at::Tensor layer_norm(const at::Tensor& x, const Weight& weight, const Weight& bias, double eps);

}  // namespace ringside::engine
