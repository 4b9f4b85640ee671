// Root-mean-square norm with a closed-form backward, alone and beside the residual stream that it
// reads. Each forward and each backward is one operator; only the input and one number a row are
// kept.
//
// x / sqrt(mean(x^2, -1) + eps) * weight. fp32 and fp64 are normed as they are. Lower precisions
// are normed in fp32 and rounded before the weight is applied, as in transformers.
//
// Shapes: x is [..., D], the weight [D], its value of x's dtype and on its device.
// Throws: c10::Error that names the tensors when shapes, dtypes or devices do not match.
// Source: Zhang and Sennrich 2019.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/nn/norm_options.h"
#include "engine/params/weight.h"

namespace ringside::engine {

// The norm of x. Differentiable in x and weight.
at::Tensor rms_norm(const at::Tensor& x, const Weight& weight, const NormOptions& options);

// A point of the residual stream.
struct ResidualNorm {
  at::Tensor residual;  // the residual stream behind this point
  at::Tensor normed;    // its norm
};

// x itself and its norm. Use this residual, not x, behind the norm: the backward then adds the
// gradients of both in the same kernel. Differentiable in x and weight.
ResidualNorm residual_rms_norm(const at::Tensor& x, const Weight& weight,
                               const NormOptions& options);

// x + branch and its norm. Differentiable in all three; branch has x's shape and dtype.
ResidualNorm add_rms_norm(const at::Tensor& x, const at::Tensor& branch, const Weight& weight,
                          const NormOptions& options);

}  // namespace ringside::engine
