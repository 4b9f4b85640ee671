#include "engine/nn/rms_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "engine/nn/checks.h"
#include "engine/nn/operators.h"

namespace ringside::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kPlusOne = "plus_one";

struct NormGradient {
  at::Tensor x;
  at::Tensor weight;
};

// The saved variables are the norm's input, its weight and rstd. Either gradient may be undefined.
NormGradient norm_gradient(const AutogradContext& ctx, const at::Tensor& d_residual,
                           const at::Tensor& d_normed) {
  if (!d_normed.defined()) {
    return {d_residual, at::Tensor()};
  }
  const variable_list saved = ctx.get_saved_variables();
  const auto [d_x, d_weight] = operators::rms_norm_backward(
      d_normed, saved[0], saved[1], saved[2],
      d_residual.defined() ? std::make_optional(d_residual) : std::nullopt,
      ctx.saved_data.at(kPlusOne).toBool());
  return {d_x, d_weight};
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& /*leaf*/, const NormOptions& options) {
    const auto [normed, rstd] =
        operators::rms_norm(x, weight, options.eps, options.in_fp32, options.plus_one);
    ctx->save_for_backward({x, weight, rstd});
    ctx->saved_data[kPlusOne] = options.plus_one;
    return normed;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const NormGradient d = norm_gradient(*ctx, at::Tensor(), grads[0]);
    return {d.x, at::Tensor(), d.weight, at::Tensor()};
  }
};

struct ResidualRmsNorm : torch::autograd::Function<ResidualRmsNorm> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& /*leaf*/, const NormOptions& options) {
    const auto [normed, rstd] =
        operators::rms_norm(x, weight, options.eps, options.in_fp32, options.plus_one);
    ctx->save_for_backward({x, weight, rstd});
    ctx->saved_data[kPlusOne] = options.plus_one;
    ctx->set_materialize_grads(false);
    return {x, normed};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const NormGradient d = norm_gradient(*ctx, grads[0], grads[1]);
    return {d.x, at::Tensor(), d.weight, at::Tensor()};
  }
};

struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& branch,
                               const at::Tensor& weight, const at::Tensor& /*leaf*/,
                               const NormOptions& options) {
    const auto [sum, normed, rstd] =
        operators::add_rms_norm(x, branch, weight, options.eps, options.in_fp32, options.plus_one);
    ctx->save_for_backward({sum, weight, rstd});
    ctx->saved_data[kPlusOne] = options.plus_one;
    ctx->set_materialize_grads(false);
    return {sum, normed};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const NormGradient d = norm_gradient(*ctx, grads[0], grads[1]);
    return {d.x, d.x, at::Tensor(), d.weight, at::Tensor()};
  }
};

void check_norm(const char* function, const at::Tensor& x, const Weight& norm) {
  const at::Tensor& weight = norm.value;
  TORCH_CHECK(weight.dim() == 1 && x.dim() >= 1 && x.size(-1) == weight.size(0), function,
              ": the weight's shape ", weight.sizes(), " is not the tail of x's ", x.sizes());
  check_alike(function, {{"x", x}, {"weight", weight}});
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const Weight& weight, const NormOptions& options) {
  check_norm("rms_norm", x, weight);
  return RmsNorm::apply(x, weight.value, weight.leaf, options);
}

ResidualNorm residual_rms_norm(const at::Tensor& x, const Weight& weight,
                               const NormOptions& options) {
  check_norm("residual_rms_norm", x, weight);
  const variable_list both = ResidualRmsNorm::apply(x, weight.value, weight.leaf, options);
  return {both[0], both[1]};
}

ResidualNorm add_rms_norm(const at::Tensor& x, const at::Tensor& branch, const Weight& weight,
                          const NormOptions& options) {
  check_norm("add_rms_norm", x, weight);
  TORCH_CHECK(branch.sizes() == x.sizes(), "add_rms_norm: branch ", branch.sizes(), " and x ",
              x.sizes());
  check_alike("add_rms_norm", {{"x", x}, {"branch", branch}});
  const variable_list both = AddRmsNorm::apply(x, branch, weight.value, weight.leaf, options);
  return {both[0], both[1]};
}

}  // namespace ringside::engine
