// Comparisons of tensors that say how far apart they are.
#pragma once

#include <ATen/ATen.h>

namespace ringside::test {

inline double max_abs_diff(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.sizes() == b.sizes(), "shapes differ: ", a.sizes(), " and ", b.sizes());
  if (a.numel() == 0) {
    return 0.0;
  }
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace ringside::test
