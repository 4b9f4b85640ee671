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

#include <optional>
#include <tuple>

#include "engine/ops/norm_options.h"
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

namespace operators {

// Shapes of these: E = size of a row. acc = the dtype of sums: fp64 for doubles, otherwise fp32;
// fp32 with in_fp32.

// y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps). x * rstd is rounded to x's dtype
// before the weight is applied. With plus_one y = x * rstd * (1 + weight), rounded once.
// Shapes: x [..., E], weight [E]; returns y like x, rstd [..., 1] in acc.
std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight,
                                            double eps, bool in_fp32, bool plus_one);

// sum = x + branch, and the norm of the sum. Returns sum, y, rstd.
// Shapes: branch like x; the rest as rms_norm.
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x,
                                                            const at::Tensor& branch,
                                                            const at::Tensor& weight, double eps,
                                                            bool in_fp32, bool plus_one);

// Gradients of a norm's input and weight, the latter in the wider of acc and the weight's dtype.
// d_sum, the gradient that reaches the input directly, is added to the first.
// Shapes: dy, x and d_sum [..., E], rstd as rms_norm returned it; returns dx like x, d_weight [E].
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                     const at::Tensor& weight,
                                                     const at::Tensor& rstd,
                                                     const std::optional<at::Tensor>& d_sum,
                                                     bool plus_one);

}  // namespace operators

// The norm as the CPU computes it, for other operators that norm. Shapes, formulas: as the
// operators', but the weight's shape may be any tail of x's.
namespace cpu {

// y and rstd, as the operator of this name.
std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight,
                                            double eps, bool in_fp32, bool plus_one);

// Gradients of a norm in acc, but for the factor rstd on the input's.
struct NormGradients {
  at::Tensor normed;
  at::Tensor weight;
};

// Both gradients for dy. Shapes: as rms_norm_backward.
NormGradients rms_norm_gradients(const at::Tensor& dy, const at::Tensor& x,
                                 const at::Tensor& weight, const at::Tensor& rstd, bool plus_one);

}  // namespace cpu
}  // namespace ringside::engine
