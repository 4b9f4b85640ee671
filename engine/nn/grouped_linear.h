// Linear layers of many experts: rows in order of their expert, one product for each expert.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/params/weight.h"

namespace ringside::engine {

// y of expert x's rows = rows weight[x]^T, plus scale (rows A[x]^T) B[x]^T with a low-rank addition
// to the weight, which then must be frozen. Rows 0 to counts[0] - 1 belong to expert 0, and so on.
// Differentiable in the rows, the weight, A and B, whose gradients are in the leaves' dtype; an
// expert without rows has zeros there.
// Shapes: rows [R, I], weight [X, O, I], counts [X] with the sum R; returns [R, O]. R may be 0.
// Throws: c10::Error on other shapes, unequal dtypes, a weight with adapters that is trained, or a
// quantised weight.
at::Tensor apply_grouped_linear(const at::Tensor& rows_RI, const Weight& weight_XOI,
                                const std::vector<int64_t>& counts_X);

}  // namespace ringside::engine
