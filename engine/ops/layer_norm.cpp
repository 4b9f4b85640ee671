#include "engine/ops/layer_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>

#include "engine/ops/checks.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType sum_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const at::Tensor& /*weight_leaf*/,
                            const at::Tensor& /*bias_leaf*/, double eps) {
    const at::ScalarType acc = sum_dtype(x);
    const auto [y, mean, rstd] = at::native_layer_norm(x.to(acc).contiguous(), weight.sizes(),
                                                       weight.to(acc), bias.to(acc), eps);
    ctx->save_for_backward({x, weight, bias, mean, rstd});
    return y.to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
    const at::ScalarType acc = sum_dtype(x);
    const auto [d_x, d_weight, d_bias] = at::native_layer_norm_backward(
        grads[0].to(acc).contiguous(), x.to(acc).contiguous(), weight.sizes(), saved[3], saved[4],
        weight.to(acc), bias.to(acc),
        {ctx->needs_input_grad(0), ctx->needs_input_grad(3), ctx->needs_input_grad(4)});
    return {d_x.defined() ? d_x.to(x.scalar_type()) : d_x,
            at::Tensor(),
            at::Tensor(),
            d_weight,
            d_bias,
            at::Tensor()};
  }
};

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const Weight& weight, const Weight& bias, double eps) {
  TORCH_CHECK(x.dim() > 0 && weight.value.sizes() == x.sizes().slice(x.dim() - 1) &&
                  bias.value.sizes() == weight.value.sizes(),
              "layer_norm: x ", x.sizes(), " with the weight ", weight.value.sizes(),
              " and the bias ", bias.value.sizes());
  check_alike("layer_norm", {{"x", x}, {"the weight", weight.value}, {"the bias", bias.value}});
  return LayerNorm::apply(x, weight.value.detach(), bias.value.detach(), weight.leaf, bias.leaf,
                          eps);
}

}  // namespace ringside::engine
