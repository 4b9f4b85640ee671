// Guards the hand-written backward passes (RMSNorm, RoPE, SwiGLU) against finite differences, their
// forwards against the textbook formula, and empty inputs, which every starving rank feeds them.
#include "engine/models/model_config.h"
#include "engine/nn/rms_norm.h"
#include "engine/nn/rope.h"
#include "engine/nn/swiglu.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"
#include "tests/support/grad_check.h"

namespace ringside::engine {
namespace {

using test::max_abs_diff;
using test::worst_gradient_error;

at::Tensor leaf(at::IntArrayRef shape) {
  return at::randn(shape, at::kDouble).set_requires_grad(true);
}

// A scalar whose gradient has no symmetry to hide behind.
at::Tensor weighted_sum(const at::Tensor& y) {
  const at::Tensor ramp = at::arange(1, y.numel() + 1, at::kDouble).view(y.sizes());
  return (y * ramp.sin()).sum();
}

ModelConfig rope_config(int64_t head_dim) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.rope_theta = 10000;
  return config;
}

TEST_CASE("rms_norm: forward by the formula, gradient by finite differences") {
  at::manual_seed(1);
  const double eps = 1e-3;
  for (const std::vector<int64_t>& weight_shape : {std::vector<int64_t>{6}, {2, 6}}) {
    const at::Tensor x = leaf({3, 2, 6}), w = leaf(weight_shape);
    const at::Tensor expected = x / (x.square().mean(-1, true) + eps).sqrt() * w;
    CHECK(max_abs_diff(rms_norm(x, w, eps), expected) < 1e-14);
    CHECK(worst_gradient_error([&] { return weighted_sum(rms_norm(x, w, eps)); }, {x, w}) < 1e-8);
  }
}

TEST_CASE("rms_norm in bf16 rounds where transformers rounds") {
  at::manual_seed(2);
  const at::Tensor x = at::randn({5, 8}).to(at::kBFloat16), w = at::randn({8}).to(at::kBFloat16);
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor expected =
      w * (x32 * (x32.square().mean(-1, true) + 1e-6).rsqrt()).to(at::kBFloat16);
  CHECK(max_abs_diff(rms_norm(x, w, 1e-6), expected) == 0);
}

TEST_CASE("rms_norm and swiglu of no rows have gradients of zero") {
  const at::Tensor x = at::zeros({0, 4}, at::kDouble).set_requires_grad(true), w = leaf({4});
  const at::Tensor y = swiglu(rms_norm(x, w, 1e-6));
  CHECK(y.sizes() == at::IntArrayRef({0, 2}));
  y.sum().backward();
  CHECK(w.grad().abs().sum().item<double>() == 0);
}

TEST_CASE("rms_norm refuses a weight that is not the tail of x") {
  CHECK_THROWS_AS(rms_norm(at::ones({3, 4}), at::ones({3}), 1e-6), c10::Error);
  CHECK_THROWS_AS(rms_norm(at::ones({3, 4}), at::ones({4}, at::kDouble), 1e-6), c10::Error);
}

TEST_CASE("swiglu: forward by the formula, gradient by finite differences") {
  at::manual_seed(3);
  const at::Tensor x = leaf({4, 10});
  const at::Tensor gate = x.narrow(1, 0, 5), up = x.narrow(1, 5, 5);
  CHECK(max_abs_diff(swiglu(x), gate * at::sigmoid(gate) * up) < 1e-14);
  CHECK(worst_gradient_error([&] { return weighted_sum(swiglu(x)); }, {x}) < 1e-8);
}

TEST_CASE(
    "apply_rope turns pairs (i, i + D/2) by position * frequency, and its gradient turns back") {
  at::manual_seed(4);
  const at::Tensor x = leaf({3, 2, 8});
  const at::Tensor positions = at::tensor({0, 5, 17}, at::kLong);
  const at::Tensor freq = rope_inverse_frequencies(8, rope_config(8).rope_theta, std::nullopt);
  const RopeTables tables = rope_tables(freq, positions, at::kDouble);
  const at::Tensor y = apply_rope(x, tables);
  const at::Tensor angle = (positions.to(at::kFloat).view({3, 1, 1}) * freq);
  const at::Tensor z = at::complex(x.narrow(2, 0, 4).detach(), x.narrow(2, 4, 4).detach()) *
                       at::complex(angle.cos().to(at::kDouble), angle.sin().to(at::kDouble));
  CHECK(max_abs_diff(y, at::cat({at::real(z), at::imag(z)}, 2)) < 1e-14);
  CHECK(worst_gradient_error([&] { return weighted_sum(apply_rope(x, tables)); }, {x}) < 1e-8);
}

TEST_CASE("llama3 scaling equals transformers on short, interpolated and long waves") {
  ModelConfig config = rope_config(64);
  config.rope_theta = 500000;
  config.rope_scaling = Llama3RopeScaling{};  // factor 8 over 8192, low 1, high 4
  const at::Tensor freq =
      rope_inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling);
  // From transformers 5.9 ROPE_INIT_FUNCTIONS["llama3"], indices 0, 1, 14 (kept), 15, 16, 17
  // (interpolated), 18, 31.
  const std::pair<int64_t, double> golden[] = {{0, 1.0},
                                               {1, 0.663601279},
                                               {14, 0.00321144611},
                                               {15, 0.00137189368},
                                               {16, 0.000524846022},
                                               {17, 0.000178507791},
                                               {18, 7.78465546e-05},
                                               {31, 3.7673226e-07}};
  for (const auto& [i, expected] : golden) {
    CHECK(freq[i].item<double>() == Approx(expected).epsilon(3e-7));
  }
}

}  // namespace
}  // namespace ringside::engine
