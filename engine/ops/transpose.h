// Transposed copies of matrices on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace ringside::engine {

// A contiguous copy of the matrix's transpose. The work is spread over at::get_num_threads().
// Shapes: matrix [r, c] in fp32, or in bf16 with an even r; its rows are contiguous. Returns [c,
// r]. Throws: c10::Error on other matrices.
at::Tensor transposed_copy(const at::Tensor& matrix);

}  // namespace ringside::engine
