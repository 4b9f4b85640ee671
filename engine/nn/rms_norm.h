// Root-mean-square norm with a closed-form backward: three kernels in the forward; only the input
// and one number a row are kept.
//
// Shapes: x is [..., D]; the weight is [D], or [H, D] when each head has its own.
// head has its own.
#pragma once

#include <ATen/core/Tensor.h>

namespace ringside::engine {

// x / sqrt(mean(x^2, -1) + eps) * weight. fp32 and fp64 are normed as they are. Lower precisions
// are normed in fp32 and rounded before the weight is applied, as in transformers. in_fp32 norms
// fp64 in fp32 too, operation for operation as transformers, for comparisons with it.
// Differentiable in both arguments.
// Shapes: the weight's shape is the tail of x's, its dtype x's.
// Throws: c10::Error on a shape or dtype mismatch.
// Source: Zhang and Sennrich 2019.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                    bool in_fp32 = false);

}  // namespace ringside::engine
