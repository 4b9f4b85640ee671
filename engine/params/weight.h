// A parameter as a layer uses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace ringside::engine {

// A layer computes with `value` and sends the gradient to `leaf`. The leaf has the master dtype, so
// the gradient of a bf16 layer is not rounded to bf16 before micro-batches and ranks are summed.
// With one dtype for both they are the same tensor.
struct Weight {
  at::Tensor value;  // in the compute dtype
  at::Tensor leaf;   // in the master dtype; may require a gradient

  Weight() = default;
  Weight(at::Tensor tensor)  // NOLINT(google-explicit-constructor)
      : value(tensor), leaf(std::move(tensor)) {}
  Weight(at::Tensor compute_value, at::Tensor master_leaf)
      : value(std::move(compute_value)), leaf(std::move(master_leaf)) {}

  bool defined() const { return value.defined(); }
  // In the compute dtype and differentiable, for code that knows no leaf: its gradient is rounded
  // to the compute dtype.
  at::Tensor differentiable_value() const;
};

}  // namespace ringside::engine
