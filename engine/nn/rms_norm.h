// Root-mean-square norm with a closed-form backward: three kernels forward, and nothing kept but
// the input and one number a row. Shapes: x is [..., D]; the weight is [D], or [H, D] when each
// head has its own.
#pragma once

#include <ATen/core/Tensor.h>

namespace ringside::engine {

// x / sqrt(mean(x^2, -1) + eps) * weight (Zhang and Sennrich 2019). The weight's shape is the tail
// of x's, its dtype x's. fp32 and fp64 are normed as they are; lower precisions are normed in fp32
// and rounded before the weight is applied, as transformers does. in_fp32 norms fp64 that way too,
// operation for operation as transformers, for comparisons with it. Differentiable in both. Throws
// c10::Error on a shape or dtype mismatch.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                    bool in_fp32 = false);

}  // namespace ringside::engine
