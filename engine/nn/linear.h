// Linear layer and embedding whose weights' gradients are in the master dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/params/weight.h"

namespace ringside::engine {

// x weight^T + bias. The products for the weight's gradient are summed in the leaf's dtype.
// Differentiable in x, weight and bias.
// Shapes: x [s, I], weight [O, I], bias [O] or undefined; returns [s, O] in x's dtype. s may be 0.
// Throws: c10::Error on other shapes or when x and the weight's value differ in dtype.
at::Tensor apply_linear(const at::Tensor& x_sI, const Weight& weight_OI, const Weight& bias_O = {});

// Rows of the table. Differentiable in the table; the gradients of equal ids are summed in the
// leaf's dtype.
// Shapes: ids [s] int64; returns [s, E].
// Throws: c10::Error on an id outside the table (on CUDA an error of the device).
at::Tensor embed(const Weight& table_VE, const at::Tensor& ids_s);

}  // namespace ringside::engine
