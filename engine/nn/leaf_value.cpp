#include "engine/nn/leaf_value.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace ringside::engine {
namespace {

struct LeafValue : torch::autograd::Function<LeafValue> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& leaf,
                            const at::Tensor& value, at::ScalarType dtype) {
    ctx->saved_data["leaf_dtype"] = static_cast<int64_t>(leaf.scalar_type());
    return value.detach().to(dtype);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["leaf_dtype"].toInt());
    return {grads[0].to(dtype), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor leaf_value(const Weight& weight) {
  return leaf_value(weight, weight.value.scalar_type());
}

at::Tensor leaf_value(const Weight& weight, at::ScalarType dtype) {
  return weight.value.is_same(weight.leaf) ? weight.value.to(dtype)
                                           : LeafValue::apply(weight.leaf, weight.value, dtype);
}

}  // namespace ringside::engine
