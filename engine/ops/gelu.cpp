#include "engine/ops/gelu.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kSlope = 1.702;

struct QuickGelu : torch::autograd::Function<QuickGelu> {
  // Rounded after each operation, as in transformers.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return x * (x * kSlope).sigmoid_();
  }

  // With s = sigmoid(1.702 x):  dx = dy s (1 + 1.702 x (1 - s)).
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor scaled = ctx->get_saved_variables()[0] * kSlope;
    const at::Tensor s = scaled.sigmoid();
    return {grads[0] * s.mul((1 - s).mul_(scaled).add_(1))};
  }
};

}  // namespace

at::Tensor gelu(const at::Tensor& x, GeluForm form) {
  TORCH_CHECK(at::isFloatingType(x.scalar_type()), "gelu: x is of dtype ", x.scalar_type());
  if (form == GeluForm::kQuick) {
    return QuickGelu::apply(x);
  }
  return at::gelu(x, form == GeluForm::kTanh ? "tanh" : "none");
}

}  // namespace ringside::engine
