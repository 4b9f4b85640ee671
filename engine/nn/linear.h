// Linear layer and embedding whose weights' gradients are in the master dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/params/weight.h"

namespace ringside::engine {

// x weight^T + bias, plus scale (x A^T) B^T for each low-rank addition of the weight. The products
// for gradients of weights are summed in the leaf's dtype. Differentiable in x, weight and bias;
// with low-rank additions in x, A and B, and the weight and the bias are constants. A packed weight
// is unpacked for each product, in both passes.
// Shapes: x [s, I], weight [O, I], bias [O] or undefined; returns [s, O] in x's dtype. s may be 0.
// Throws: c10::Error on other shapes, when x and the weight's value differ in dtype, or when a
// weight with low-rank additions requires a gradient.
at::Tensor apply_linear(const at::Tensor& x_sI, const Weight& weight_OI, const Weight& bias_O = {});

// Rows of the table. Differentiable in the table; the gradients of equal ids are summed in the
// leaf's dtype.
// Shapes: ids [s] int64; returns [s, E].
// Throws: c10::Error on an id outside the table (on CUDA an error of the device).
at::Tensor embed(const Weight& table_VE, const at::Tensor& ids_s);

}  // namespace ringside::engine
