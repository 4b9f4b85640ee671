#include "engine/ops/rms_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <vector>

#include "engine/ops/bf16_rows.h"
#include "engine/ops/checks.h"
#include "engine/ops/dispatch.h"

namespace ringside::engine {
namespace {

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

struct Normed {
  at::Tensor sum;
  at::Tensor y;
  at::Tensor rstd;
};

// Of bf16 rows without gaps. branch: undefined for none.
Normed norm_bf16_rows(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                      double eps, bool plus_one) {
  std::vector<int64_t> one_a_row = x.sizes().vec();
  one_a_row.back() = 1;
  Normed result{branch.defined() ? at::empty(x.sizes(), x.options()) : x,
                at::empty(x.sizes(), x.options()),
                at::empty(one_a_row, x.options().dtype(at::kFloat))};
  bf16::norm({bf16::words(x), bf16::words(branch), bf16::words(weight),
              branch.defined() ? bf16::words_to_write(result.sum) : nullptr,
              bf16::words_to_write(result.y), result.rstd.mutable_data_ptr<float>(),
              result.rstd.numel(), x.size(-1), static_cast<float>(eps), plus_one});
  return result;
}

// What a norm multiplies by, in the dtype of its sums.
at::Tensor factor_of(const at::Tensor& weight, at::ScalarType acc, bool plus_one) {
  return plus_one ? weight.to(acc).add(1) : weight.to(acc);
}

}  // namespace

namespace cpu {

// With n = x * rstd and g = dy * w:  dx = rstd * (g - n * mean(g * n)),  dw = sum over rows of dy
// * n. The weight's shape is the tail of x's.
NormGradients rms_norm_gradients(const at::Tensor& dy_any, const at::Tensor& x,
                                 const at::Tensor& weight, const at::Tensor& rstd, bool plus_one) {
  const at::ScalarType acc = rstd.scalar_type();
  const at::Tensor dy = dy_any.to(acc);
  const at::Tensor w = factor_of(weight, acc, plus_one);
  const at::Tensor normed = x.to(acc) * rstd;
  at::Tensor product = dy * normed;
  const at::Tensor d_weight =
      product.sum_to_size(weight.sizes()).to(c10::promoteTypes(weight.scalar_type(), acc));
  const at::Tensor mean = product.mul_(w).mean(-1, /*keepdim=*/true);
  return {(dy * w).addcmul_(normed, mean, -1), d_weight};
}

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight,
                                            double eps, bool in_fp32, bool plus_one) {
  if (weight.dim() == 1 && x.size(-1) > 0 && bf16::takes({x, weight})) {
    const Normed normed = norm_bf16_rows(x, {}, weight, eps, plus_one);
    return {normed.y, normed.rstd};
  }
  const at::Tensor x_acc = x.to(norm_dtype(x.scalar_type(), in_fp32));
  const at::Tensor rstd = mean_square(x_acc, in_fp32).add_(eps).rsqrt_();
  if (plus_one) {
    at::Tensor scaled = (x_acc * rstd).mul_(factor_of(weight, rstd.scalar_type(), true));
    return {scaled.to(x.scalar_type()), rstd};
  }
  at::Tensor normed = (x_acc * rstd).to(x.scalar_type());
  return {normed.mul_(weight), rstd};
}

}  // namespace cpu

namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_on_cpu(const at::Tensor& x,
                                                                   const at::Tensor& branch,
                                                                   const at::Tensor& weight,
                                                                   double eps, bool in_fp32,
                                                                   bool plus_one) {
  if (x.size(-1) > 0 && bf16::takes({x, branch, weight})) {
    const Normed normed = norm_bf16_rows(x, branch, weight, eps, plus_one);
    return {normed.sum, normed.y, normed.rstd};
  }
  const at::Tensor sum = x + branch;
  const auto [y, rstd] = cpu::rms_norm(sum, weight, eps, in_fp32, plus_one);
  return {sum, y, rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_on_cpu(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
    const std::optional<at::Tensor>& d_sum, bool plus_one) {
  const at::Tensor added = d_sum.value_or(at::Tensor());
  if (x.size(-1) > 0 && bf16::takes({dy, x, weight, added})) {
    at::Tensor dx = at::empty(x.sizes(), x.options());
    at::Tensor d_weight = at::empty(weight.sizes(), weight.options().dtype(at::kFloat));
    bf16::norm_gradient({bf16::words(dy), bf16::words(x), bf16::words(weight), bf16::words(added),
                         rstd.const_data_ptr<float>(), bf16::words_to_write(dx),
                         d_weight.mutable_data_ptr<float>(), rstd.numel(), x.size(-1), plus_one});
    return {dx, d_weight};
  }
  const cpu::NormGradients grads = cpu::rms_norm_gradients(dy, x, weight, rstd, plus_one);
  at::Tensor dx = at::Tensor(grads.normed).mul_(rstd).to(x.scalar_type());
  if (d_sum) {
    dx.add_(*d_sum);
  }
  return {dx, grads.weight};
}

TORCH_LIBRARY_FRAGMENT(ringside, m) {
  define_operator(m,
                  "rms_norm(Tensor x, Tensor weight, float eps, bool in_fp32, bool plus_one) -> "
                  "(Tensor, Tensor)",
                  TORCH_FN(cpu::rms_norm));
  define_operator(m,
                  "add_rms_norm(Tensor x, Tensor branch, Tensor weight, float eps, bool in_fp32, "
                  "bool plus_one) -> (Tensor, Tensor, Tensor)",
                  TORCH_FN(add_rms_norm_on_cpu));
  define_operator(m,
                  "rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor rstd, Tensor? "
                  "d_sum, bool plus_one) -> (Tensor, Tensor)",
                  TORCH_FN(rms_norm_backward_on_cpu));
}

}  // namespace

namespace operators {

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x, const at::Tensor& weight,
                                            double eps, bool in_fp32, bool plus_one) {
  static const Operator<decltype(rms_norm)> op("ringside::rms_norm");
  return op(x, weight, eps, in_fp32, plus_one);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x,
                                                            const at::Tensor& branch,
                                                            const at::Tensor& weight, double eps,
                                                            bool in_fp32, bool plus_one) {
  static const Operator<decltype(add_rms_norm)> op("ringside::add_rms_norm");
  return op(x, branch, weight, eps, in_fp32, plus_one);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                     const at::Tensor& weight,
                                                     const at::Tensor& rstd,
                                                     const std::optional<at::Tensor>& d_sum,
                                                     bool plus_one) {
  static const Operator<decltype(rms_norm_backward)> op("ringside::rms_norm_backward");
  return op(dy, x, weight, rstd, d_sum, plus_one);
}

}  // namespace operators

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
