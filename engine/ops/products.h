// Products of activations with weights, by the kernel that a plan chooses. Outside autograd. What
// has no panels here (engine/ops/panels.h), which includes all devices but the CPU, is computed by
// LibTorch, whatever the kernel.
//
// Shapes: s = tokens, I = inputs, O = outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/device/product_plan.h"
#include "engine/ops/panels.h"

namespace ringside::engine {

// x weight^T + bias, in the inputs' dtype.
// panels: the packed weight; null: it is not packed yet. Shapes: x [s, I], weight [O, I], bias [O]
// or undefined.
at::Tensor product_with_rows(const at::Tensor& x_sI, const at::Tensor& weight_OI,
                             const at::Tensor& bias_O, ProductKernels kernel,
                             const Panels* panels = nullptr);

// dy weight, in the inputs' dtype.
// Shapes: dy [s, O], weight [O, I].
at::Tensor product_with_columns(const at::Tensor& dy_sO, const at::Tensor& weight_OI,
                                ProductKernels kernel);

// sum += dy^T x. Products of bf16 are exact and summed in fp32.
// Shapes: sum [O, I], dy [s, O], x [s, I]; sum may have a wider dtype than dy and x.
void add_gradient_product(const at::Tensor& sum_OI, const at::Tensor& dy_sO, const at::Tensor& x_sI,
                          ProductKernels kernel);

// x weight^T in fp32, not rounded, of fp32 or bf16 inputs that panels can hold. The weight is
// packed some rows at a time, widened with kWidePanels. Shapes: as product_with_rows().
at::Tensor wide_product_with_rows(const at::Tensor& x_sI, const at::Tensor& weight_OI,
                                  const Panels* panels = nullptr, ProductKernels kernel = {});

// sum += a^T b by panels of this kernel. Returns false, and does nothing, where they have no kernel
// for it or do not pay. With kPanels, a in fp32 beside b in bf16 counts as the sum of two bf16
// matrices, which leaves 2^-17 of it out.
// Shapes: sum [m, n] fp32, a [k, m], b [k, n], fp32 or bf16 on the CPU.
bool add_transposed_by_panels(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b,
                              ProductKernel kernel = ProductKernel::kPanels);

}  // namespace ringside::engine
