// A GEMM that adds to a sum of a wider dtype.
#pragma once

#include <ATen/core/Tensor.h>

namespace ringside::engine::operators {

// sum += a^T b, with sums in sum's dtype, which may be wider than a's and b's. Of factors in bf16
// the CPU takes the units of the processor where it has them.
// Shapes: sum [m, n], a [k, m], b [k, n].
void add_transposed_mm(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace ringside::engine::operators
