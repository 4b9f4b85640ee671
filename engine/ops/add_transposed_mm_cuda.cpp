// CUDA implementation of a GEMM that adds to a wider sum. This object registers it when it is
// linked: link it as an object, not from an archive.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace ringside::engine {
namespace {

// The GEMM reads both factors as they are and adds in sum's dtype.
void add_transposed_mm_on_cuda(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor target = sum;
  if (a.scalar_type() == sum.scalar_type()) {
    target.addmm_(a.t(), b);
  } else {
    at::addmm_out(target, target, a.t(), b, sum.scalar_type());
  }
}

TORCH_LIBRARY_IMPL(ringside, CUDA, m) {
  m.impl("add_transposed_mm", TORCH_FN(add_transposed_mm_on_cuda));
}

}  // namespace
}  // namespace ringside::engine
