#include "engine/nn/leaf_value.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace ringside::engine {
namespace {

struct LeafValue : torch::autograd::Function<LeafValue> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& leaf,
                            const at::Tensor& value) {
    ctx->saved_data["leaf_dtype"] = static_cast<int64_t>(leaf.scalar_type());
    return value.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["leaf_dtype"].toInt());
    return {grads[0].to(dtype), at::Tensor()};
  }
};

}  // namespace

at::Tensor leaf_value(const Weight& weight) {
  return weight.value.is_same(weight.leaf) ? weight.value
                                           : LeafValue::apply(weight.leaf, weight.value);
}

}  // namespace ringside::engine
