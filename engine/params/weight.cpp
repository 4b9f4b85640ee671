#include "engine/params/weight.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The value forward, the leaf's gradient backward.
struct ValueOfLeaf : torch::autograd::Function<ValueOfLeaf> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& leaf, const at::Tensor& value) {
    ctx->saved_data["dtype"] = static_cast<int64_t>(leaf.scalar_type());
    return value;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {grads[0].to(static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt())),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor Weight::differentiable_value() const {
  return value.is_same(leaf) ? leaf : ValueOfLeaf::apply(leaf, value);
}

}  // namespace ringside::engine
