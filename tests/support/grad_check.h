// Gradients against central finite differences, in fp64.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <functional>

namespace ringside::test {

// d f / d x[i] of a scalar function, by central differences. `x` is contiguous and fp64, and
// afterwards as it was.
inline double finite_difference(const std::function<double()>& f, at::Tensor x, int64_t i,
                                double step = 1e-5) {
  const at::NoGradGuard no_grad;
  double& value = x.mutable_data_ptr<double>()[i];
  const double original = value;
  value = original + step;
  const double above = f();
  value = original - step;
  const double below = f();
  value = original;
  return (above - below) / (2 * step);
}

// The largest |autograd - finite difference| over all elements of contiguous fp64 leaves, of the
// scalar f().
inline double worst_gradient_error(const std::function<at::Tensor()>& f,
                                   const std::vector<at::Tensor>& leaves) {
  for (const at::Tensor& leaf : leaves) {
    leaf.mutable_grad().reset();
  }
  f().backward();
  double worst = 0;
  for (const at::Tensor& leaf : leaves) {
    const at::Tensor grad =
        leaf.grad().defined() ? leaf.grad().contiguous() : at::zeros_like(leaf.detach());
    for (int64_t i = 0; i < leaf.numel(); ++i) {
      const double expected =
          finite_difference([&] { return f().item<double>(); }, leaf.detach(), i);
      worst = std::max(worst, std::abs(expected - grad.const_data_ptr<double>()[i]));
    }
  }
  return worst;
}

}  // namespace ringside::test
