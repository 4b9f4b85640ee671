// Guards: LayerNorm and GELU in another form, or with another gradient, than their formulas;
// gradients of a norm's weights that are summed in bf16.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <numbers>

#include "engine/ops/gelu.h"
#include "engine/ops/layer_norm.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/grad_check.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;

at::Tensor leaf(at::IntArrayRef shape) { return at::randn(shape, at::kDouble).requires_grad_(); }

at::Tensor normed(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor centred = x - x.mean(-1, /*keepdim=*/true);
  return centred / (centred.square().mean(-1, /*keepdim=*/true) + 1e-3).sqrt() * weight + bias;
}

at::Tensor formula(const at::Tensor& x, GeluForm form) {
  switch (form) {
    case GeluForm::kExact:
      return 0.5 * x * (1 + at::erf(x / std::numbers::sqrt2));
    case GeluForm::kTanh:
      return 0.5 * x * (1 + at::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x.pow(3))));
    case GeluForm::kQuick:
      return x / (1 + at::exp(-1.702 * x));
  }
  return {};
}

TEST_CASE("layer norm is its formula, and so are its gradients") {
  at::manual_seed(1);
  const at::Tensor x = leaf({3, 2, 5}), weight = leaf({5}), bias = leaf({5});
  const at::Tensor y = layer_norm(x, weight, bias, 1e-3);
  CHECK(max_abs_diff(y.detach(), normed(x, weight, bias).detach()) < 1e-13);
  const at::Tensor share = at::randn(y.sizes(), at::kDouble);
  CHECK(test::worst_gradient_error(
            [&] { return (layer_norm(x, weight, bias, 1e-3) * share).sum(); }, {x, weight, bias}) <
        1e-8);
  // Rows without gaps are no condition.
  const at::Tensor strided = x.transpose(0, 1);
  CHECK(max_abs_diff(layer_norm(strided, weight, bias, 1e-3).detach(),
                     y.transpose(0, 1).detach()) == 0);
}

TEST_CASE("layer norm of bf16 is rounded once, and sums its weights' gradients in fp32") {
  at::manual_seed(2);
  const int64_t rows = 3000;
  const at::Tensor x = at::randn({rows, 6}, at::kDouble).to(at::kBFloat16).requires_grad_();
  const at::Tensor weight = (at::rand({6}, at::kFloat) + 0.5).requires_grad_();
  const at::Tensor bias = at::randn({6}, at::kFloat).requires_grad_();
  const auto in_bf16 = [](const at::Tensor& t) { return t.detach().to(at::kBFloat16); };
  const at::Tensor y = layer_norm(x, {in_bf16(weight), weight}, {in_bf16(bias), bias}, 1e-6);
  REQUIRE(y.scalar_type() == at::kBFloat16);
  const auto wide = [](const at::Tensor& t) {
    return t.detach().to(at::kBFloat16).to(at::kDouble).requires_grad_();
  };
  const at::Tensor x_wide = wide(x), w_wide = wide(weight), b_wide = wide(bias);
  const at::Tensor expected = at::layer_norm(x_wide, {6}, w_wide, b_wide, 1e-6);
  CHECK(at::allclose(y.detach().to(at::kDouble), expected.detach(), 1.0 / 256, 0));
  const at::Tensor share = at::rand({rows, 6}, at::kDouble).to(at::kBFloat16);
  (y * share).sum().backward();
  (expected * share.to(at::kDouble)).sum().backward();
  CHECK(weight.grad().scalar_type() == at::kFloat);
  CHECK(x.grad().scalar_type() == at::kBFloat16);
  // 3000 addends: a sum in bf16 would be wrong in the second digit.
  CHECK(at::allclose(weight.grad().to(at::kDouble), w_wide.grad(), 1e-5, 1e-3));
  CHECK(at::allclose(bias.grad().to(at::kDouble), b_wide.grad(), 1e-5));
}

TEST_CASE("layer norm of no rows has gradients of zero") {
  const at::Tensor weight = leaf({4}), bias = leaf({4});
  const at::Tensor x = at::empty({0, 4}, at::kDouble).requires_grad_();
  layer_norm(x, weight, bias, 1e-6).sum().backward();
  CHECK(weight.grad().equal(at::zeros({4}, at::kDouble)));
  CHECK(bias.grad().equal(at::zeros({4}, at::kDouble)));
}

TEST_CASE("layer norm refuses weights that do not fit") {
  const at::Tensor x = at::ones({2, 4});
  CHECK_THROWS_AS(layer_norm(x, at::ones({3}), at::ones({4}), 1e-6), c10::Error);
  CHECK_THROWS_AS(layer_norm(x, at::ones({4}), at::ones({3}), 1e-6), c10::Error);
  CHECK_THROWS_AS(layer_norm(x, at::ones({4}, at::kDouble), at::ones({4}), 1e-6), c10::Error);
}

TEST_CASE("each form of GELU is its formula, and so are its gradients") {
  for (const GeluForm form : {GeluForm::kExact, GeluForm::kTanh, GeluForm::kQuick}) {
    CAPTURE(static_cast<int>(form));
    const at::Tensor x = (at::arange(-20, 21, at::kDouble) / 4).requires_grad_();
    CHECK(max_abs_diff(gelu(x, form).detach(), formula(x, form).detach()) < 1e-15);
    const at::Tensor share = x.detach().cos();
    CHECK(test::worst_gradient_error([&] { return (gelu(x, form) * share).sum(); }, {x}) < 1e-8);
  }
  CHECK_THROWS_AS(gelu(at::ones({2}, at::kLong), GeluForm::kQuick), c10::Error);
}

}  // namespace
}  // namespace ringside::engine
