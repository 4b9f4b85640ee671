// Comparisons of tensors that say how far apart they are.
#pragma once

#include <ATen/ATen.h>

namespace ringside::test {

// The largest |a - b| of two tensors of one shape, computed in fp64; 0 without elements.
// Throws: c10::Error when the shapes differ.
inline double max_abs_diff(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.sizes() == b.sizes(), "shapes differ: ", a.sizes(), " and ", b.sizes());
  if (a.numel() == 0) {
    return 0.0;
  }
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace ringside::test
