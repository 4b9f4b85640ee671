// A matrix packed for products: panels of 64 outputs, in the order in which oneDNN's BRGEMM reads
// them. A weight that many products share is packed once for all of them.
//
// The bits of a row of the result depend on that row and the matrix alone: not on the other rows,
// nor on the number of threads. So a token has the same product in a batch of any size.
//
// Shapes: M = rows of x, K = inner size, N = outputs.
// Thread safety: const functions from any thread. The work is spread over at::get_num_threads().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ringside::engine {

class Panels {
 public:
  // Whether this processor has the kernels: fp32 with AVX2, bf16 with AVX512_BF16 or AMX and an
  // even inner size.
  static bool can_hold(at::ScalarType dtype, int64_t inner);
  // Memory of a packed matrix: outputs are padded to a multiple of 64.
  static int64_t bytes(int64_t outputs, int64_t inner, at::ScalarType dtype);

  // For x matrix^T; the matrix may be strided. On the CPU.
  // Throws: c10::Error unless it has two dimensions and can_hold() it.
  static Panels of_rows(const at::Tensor& matrix_NK);
  // The same with panels in `dtype`, the matrix's or fp32 for one in bf16: products are then
  // computed in fp32, which on some processors is faster.
  static Panels of_rows(const at::Tensor& matrix_NK, at::ScalarType dtype);
  // The same for x matrix.
  static Panels of_columns(const at::Tensor& matrix_KN);
  static Panels of_columns(const at::Tensor& matrix_KN, at::ScalarType dtype);

  int64_t outputs() const { return outputs_; }
  int64_t inner() const { return inner_; }
  at::ScalarType dtype() const { return packed_.scalar_type(); }
  int64_t bytes() const { return static_cast<int64_t>(packed_.nbytes()); }
  // [panels, K, 64] in fp32, [panels, K / 2, 64, 2] in bf16.
  const at::Tensor& packed() const { return packed_; }

 private:
  Panels(at::Tensor packed, int64_t outputs, int64_t inner);

  at::Tensor packed_;
  int64_t outputs_ = 0, inner_ = 0;
};

// Whether the elements of each row lie side by side, and rows do not overlap. Of matrices.
bool has_contiguous_rows(const at::Tensor& matrix);

// What happens to a product where it is stored.
enum class Store {
  kSet,  // y = product
  kAdd,  // y += product; y is fp32
};

// Stores x times the packed matrix, plus the bias, in y. Products are summed in fp32 and rounded to
// y's dtype once. Outside autograd.
// Shapes: x [M, K] in the panels' dtype, or in bf16; y [M, N], fp32 or x's dtype; bias [N] in x's
// dtype or undefined. x and y have contiguous rows, and so has the bias. M may be 0.
// Throws: c10::Error on other shapes, dtypes or strides.
void multiply(const at::Tensor& x_MK, const Panels& panels, const at::Tensor& y_MN,
              Store store = Store::kSet, const at::Tensor& bias_N = {});

}  // namespace ringside::engine
