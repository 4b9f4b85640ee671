#include "engine/nn/rms_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType norm_dtype(at::ScalarType dtype, bool in_fp32) {
  return dtype == at::kDouble && !in_fp32 ? at::kDouble : at::kFloat;
}

at::Tensor mean_square(const at::Tensor& x, bool in_fp32) {
  if (in_fp32) {
    return x.pow(2).mean(-1, /*keepdim=*/true);  // bit-identical to transformers
  }
  // One reduction kernel; the rest works on one number a row.
  const double root_dim = std::sqrt(static_cast<double>(x.size(-1)));
  return at::linalg_vector_norm(x, 2, at::IntArrayRef({-1}), /*keepdim=*/true)
      .div_(root_dim)
      .square_();
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            double eps, bool in_fp32) {
    const at::Tensor x_acc = x.to(norm_dtype(x.scalar_type(), in_fp32));
    const at::Tensor rstd = mean_square(x_acc, in_fp32).add_(eps).rsqrt_();
    ctx->save_for_backward({x, weight, rstd});
    at::Tensor normed = (x_acc * rstd).to(x.scalar_type());
    return normed.mul_(weight);
  }

  // With n = x * rstd and g = dy * w:  dx = rstd * (g - n * mean(g * n)),  dw = sum over rows of dy
  // * n.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
    const at::ScalarType acc = rstd.scalar_type();
    const at::Tensor dy = grads[0].to(acc);
    const at::Tensor w = weight.to(acc);
    const at::Tensor normed = x.to(acc) * rstd;
    at::Tensor product = dy * normed;
    at::Tensor d_weight;
    if (ctx->needs_input_grad(1)) {
      d_weight = product.sum_to_size(weight.sizes()).to(weight.scalar_type());
    }
    const at::Tensor mean = product.mul_(w).mean(-1, /*keepdim=*/true);
    at::Tensor d_x = (dy * w).addcmul_(normed, mean, -1).mul_(rstd);
    return {d_x.to(x.scalar_type()), d_weight, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, bool in_fp32) {
  const int64_t tail = weight.dim();
  TORCH_CHECK(tail >= 1 && x.dim() >= tail && x.sizes().slice(x.dim() - tail) == weight.sizes(),
              "rms_norm: the weight's shape ", weight.sizes(), " is not the tail of x's ",
              x.sizes());
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "rms_norm: x is ", x.scalar_type(),
              ", the weight ", weight.scalar_type());
  return RmsNorm::apply(x, weight, eps, in_fp32);
}

}  // namespace ringside::engine
