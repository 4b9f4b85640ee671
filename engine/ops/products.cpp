#include "engine/ops/products.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "engine/ops/add_transposed_mm.h"
#include "engine/ops/transpose.h"

namespace ringside::engine {
namespace {

// Rows of a weight that are packed at once where its packed copy is used once.
constexpr int64_t kSlabRows = 4096;
// Rows that a product is summed over at a time, and columns of the transposed factor: both stay in
// a core's cache.
constexpr int64_t kSumRows = 1024;
constexpr int64_t kTransposedColumns = 1024;
// A narrower factor would leave most of a panel empty.
constexpr int64_t kLeastOutputs = 32;

at::Tensor with_rows(const at::Tensor& matrix) {
  return has_contiguous_rows(matrix) ? matrix : matrix.contiguous();
}

// Of the panels for factors of this dtype.
at::ScalarType panel_dtype(at::ScalarType factors, ProductKernel kernel) {
  return kernel == ProductKernel::kWidePanels ? at::kFloat : factors;
}

bool multiplies(at::ScalarType dtype) { return dtype == at::kFloat || dtype == at::kBFloat16; }

bool has_panels(const at::Tensor& x, int64_t outputs, ProductKernel kernel, int64_t least_rows) {
  return kernel != ProductKernel::kLibTorch && x.device().is_cpu() && outputs >= kLeastOutputs &&
         x.numel() > 0 && x.size(0) >= least_rows && multiplies(x.scalar_type()) &&
         Panels::can_hold(panel_dtype(x.scalar_type(), kernel), x.size(1));
}

void multiply_by_slabs(const at::Tensor& x, const at::Tensor& weight_OI, const at::Tensor& bias_O,
                       const at::Tensor& y, ProductKernel kernel) {
  const at::ScalarType dtype = panel_dtype(x.scalar_type(), kernel);
  const int64_t outputs = weight_OI.size(0);
  for (int64_t begin = 0; begin < outputs; begin += kSlabRows) {
    const int64_t count = std::min(kSlabRows, outputs - begin);
    const auto part = bias_O.defined() ? bias_O.narrow(0, begin, count) : at::Tensor();
    multiply(x, Panels::of_rows(weight_OI.narrow(0, begin, count), dtype),
             y.narrow(1, begin, count), Store::kSet, part);
  }
}

// sum += a^T b, of one dtype, or a in the panels' and b in bf16.
void add_by_panels(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b,
                   at::ScalarType panels_in) {
  for (int64_t row = 0; row < a.size(0); row += kSumRows) {
    const int64_t rows = std::min(kSumRows, a.size(0) - row);
    const Panels panels = Panels::of_columns(b.narrow(0, row, rows), panels_in);
    for (int64_t column = 0; column < a.size(1); column += kTransposedColumns) {
      const int64_t columns = std::min(kTransposedColumns, a.size(1) - column);
      multiply(transposed_copy(a.narrow(0, row, rows).narrow(1, column, columns)), panels,
               sum.narrow(0, column, columns), Store::kAdd);
    }
  }
}

}  // namespace

at::Tensor product_with_rows(const at::Tensor& x_sI, const at::Tensor& weight_OI,
                             const at::Tensor& bias_O, ProductKernels kernel,
                             const Panels* panels) {
  const int64_t outputs = weight_OI.size(0);
  if (panels == nullptr && !has_panels(x_sI, outputs, kernel.forward, kernel.least_rows)) {
    return bias_O.defined() ? at::addmm(bias_O, x_sI, weight_OI.t()) : at::mm(x_sI, weight_OI.t());
  }
  at::Tensor y = at::empty({x_sI.size(0), outputs}, x_sI.options());
  const at::Tensor bias = bias_O.defined() ? bias_O.contiguous() : bias_O;
  if (panels != nullptr) {
    multiply(with_rows(x_sI), *panels, y, Store::kSet, bias);
  } else {
    multiply_by_slabs(with_rows(x_sI), weight_OI, bias, y, kernel.forward);
  }
  return y;
}

at::Tensor product_with_columns(const at::Tensor& dy_sO, const at::Tensor& weight_OI,
                                ProductKernels kernel) {
  if (!has_panels(dy_sO, weight_OI.size(1), kernel.backward, kernel.least_rows)) {
    return at::mm(dy_sO, weight_OI);
  }
  const int64_t outputs = dy_sO.size(1);
  const at::ScalarType panels_in = panel_dtype(dy_sO.scalar_type(), kernel.backward);
  const at::Tensor dy = with_rows(dy_sO);
  if (outputs <= kSlabRows) {
    at::Tensor dx = at::empty({dy.size(0), weight_OI.size(1)}, dy.options());
    multiply(dy, Panels::of_columns(weight_OI, panels_in), dx);
    return dx;
  }
  at::Tensor sum = at::zeros({dy.size(0), weight_OI.size(1)}, dy.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < outputs; begin += kSlabRows) {
    const int64_t count = std::min(kSlabRows, outputs - begin);
    multiply(dy.narrow(1, begin, count),
             Panels::of_columns(weight_OI.narrow(0, begin, count), panels_in), sum, Store::kAdd);
  }
  return sum.to(dy.scalar_type());
}

void add_gradient_product(const at::Tensor& sum_OI, const at::Tensor& dy_sO, const at::Tensor& x_sI,
                          ProductKernels kernel) {
  if (kernel.gradient != ProductKernel::kLibTorch && dy_sO.size(0) >= kernel.least_rows &&
      add_transposed_by_panels(sum_OI, dy_sO, x_sI, kernel.gradient)) {
    return;
  }
  operators::add_transposed_mm(sum_OI, dy_sO, x_sI);
}

at::Tensor wide_product_with_rows(const at::Tensor& x_sI, const at::Tensor& weight_OI,
                                  const Panels* panels, ProductKernels kernel) {
  at::Tensor y = at::empty({x_sI.size(0), weight_OI.size(0)}, x_sI.options().dtype(at::kFloat));
  if (panels != nullptr) {
    multiply(with_rows(x_sI), *panels, y);
  } else {
    multiply_by_slabs(with_rows(x_sI), weight_OI, {}, y, kernel.forward);
  }
  return y;
}

bool add_transposed_by_panels(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b,
                              ProductKernel kernel) {
  const int64_t rows = a.size(0), paired = rows - rows % 2;
  const at::ScalarType panels_in = panel_dtype(b.scalar_type(), kernel);
  if (!sum.device().is_cpu() || sum.scalar_type() != at::kFloat || !has_contiguous_rows(sum) ||
      b.size(1) < kLeastOutputs || paired == 0 || !multiplies(b.scalar_type()) ||
      !Panels::can_hold(panels_in, paired) ||
      (a.scalar_type() != b.scalar_type() && a.scalar_type() != at::kFloat)) {
    return false;
  }
  const at::Tensor b_rows = with_rows(b), a_rows = with_rows(a);
  if (a.scalar_type() == at::kFloat && panels_in == at::kFloat) {
    add_by_panels(sum, a_rows, b_rows, panels_in);
    return true;
  }
  if (a.scalar_type() == at::kFloat) {
    const at::Tensor high = a_rows.to(at::kBFloat16);
    const at::Tensor low = (a_rows - high).to(at::kBFloat16);
    return add_transposed_by_panels(sum, high, b_rows, kernel) &&
           add_transposed_by_panels(sum, low, b_rows, kernel);
  }
  // Transposes of bf16 take rows in pairs.
  add_by_panels(sum, a_rows.narrow(0, 0, paired), b_rows.narrow(0, 0, paired), panels_in);
  if (paired < rows) {
    at::Tensor target = sum;
    target.addr_(a_rows[paired].to(at::kFloat), b_rows[paired].to(at::kFloat));
  }
  return true;
}

}  // namespace ringside::engine
