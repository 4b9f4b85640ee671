// Linear layer and embedding whose weights' gradients are in the master dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/ops/vocabulary_part.h"
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

// y + bias, whose gradient is summed in the leaf's dtype: a bias that is added behind a sum over
// ranks. Undefined bias: y.
// Shapes: y [s, O], bias [O].
at::Tensor add_bias(const at::Tensor& y_sO, const Weight& bias_O);

// Rows of the table. Differentiable in the table; the gradients of equal ids are summed in the
// leaf's dtype.
// Shapes: ids [s] int64; returns [s, E].
// Throws: c10::Error on an id outside the table (on CUDA an error of the device).
at::Tensor embed(const Weight& table_VE, const at::Tensor& ids_s);

// The same with the rows of this tensor-parallel rank's words alone, and zeros for words of other
// ranks: the sum over the ranks has one term that is not zero, so it has the bits of embed() with
// the whole table.
// Shapes: table [words of the part, E], which may be none; ids [s] int64; returns [s, E].
// Throws: on the CPU c10::Error on an id outside the vocabulary.
at::Tensor embed_part(const Weight& table_vE, const at::Tensor& ids_s, const VocabularyPart& part);

}  // namespace ringside::engine
