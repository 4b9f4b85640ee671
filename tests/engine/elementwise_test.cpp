// Guards the hand-written backward passes (RMSNorm, RoPE, SwiGLU) against finite differences, their
// forwards against the textbook formula, and empty inputs, which every starving rank feeds them.
#include "engine/layers/model_config.h"
#include "engine/nn/rope.h"
#include "engine/ops/gated_activation.h"
#include "engine/ops/qk_norm_rope.h"
#include "engine/ops/rms_norm.h"
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

TEST_CASE("rms_norm: forward by the formula, gradient by finite differences") {
  at::manual_seed(1);
  const double eps = 1e-3;
  const at::Tensor x = leaf({3, 2, 6}), w = leaf({6});
  const at::Tensor expected = x / (x.square().mean(-1, true) + eps).sqrt() * w;
  CHECK(max_abs_diff(rms_norm(x, w, {eps}), expected) < 1e-14);
  CHECK(worst_gradient_error([&] { return weighted_sum(rms_norm(x, w, {eps})); }, {x, w}) < 1e-8);
  const NormOptions plus_one{.eps = eps, .plus_one = true};
  CHECK(max_abs_diff(rms_norm(x, w, plus_one), expected / w * (1 + w)) < 1e-13);
  CHECK(worst_gradient_error([&] { return weighted_sum(rms_norm(x, w, plus_one)); }, {x, w}) <
        1e-8);
}

TEST_CASE("norms beside the residual stream: both results, each alone, and their gradients") {
  at::manual_seed(6);
  const double eps = 1e-3;
  const at::Tensor x = leaf({4, 6}), branch = leaf({4, 6}), w = leaf({6});
  const ResidualNorm alone = residual_rms_norm(x, w, {eps});
  CHECK(max_abs_diff(alone.residual, x) == 0);
  CHECK(max_abs_diff(alone.normed, rms_norm(x, w, {eps})) == 0);
  const ResidualNorm added = add_rms_norm(x, branch, w, {eps});
  CHECK(max_abs_diff(added.residual, x + branch) == 0);
  CHECK(max_abs_diff(added.normed, rms_norm(x + branch, w, {eps})) == 0);
  for (const auto& [of_residual, of_normed] : {std::pair{1.0, 1.0}, {1.0, 0.0}, {0.0, 1.0}}) {
    CAPTURE(of_residual, of_normed);
    // A result that is not used has no gradient, not one of zeros.
    const auto loss = [&, r = of_residual, n = of_normed](const ResidualNorm& both) {
      at::Tensor sum = at::zeros({}, at::kDouble);
      sum = r != 0 ? sum + weighted_sum(both.residual.sin()) : sum;
      return n != 0 ? sum + weighted_sum(both.normed) : sum;
    };
    std::vector<at::Tensor> leaves{x};
    if (of_normed != 0) {
      leaves.push_back(w);
    }
    CHECK(worst_gradient_error([&] { return loss(residual_rms_norm(x, w, {eps})); }, leaves) <
          1e-8);
    leaves.push_back(branch);
    CHECK(worst_gradient_error([&] { return loss(add_rms_norm(x, branch, w, {eps})); }, leaves) <
          1e-8);
  }
}

TEST_CASE("rms_norm in bf16 rounds where transformers rounds") {
  at::manual_seed(2);
  const at::Tensor x = at::randn({5, 8}).to(at::kBFloat16), w = at::randn({8}).to(at::kBFloat16);
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor expected =
      w * (x32 * (x32.square().mean(-1, true) + 1e-6).rsqrt()).to(at::kBFloat16);
  CHECK(max_abs_diff(rms_norm(x, w, {1e-6}), expected) == 0);
  // Gemma's norms round once, behind the weight.
  const at::Tensor once =
      (x32 * (x32.square().mean(-1, true) + 1e-6).rsqrt() * (1 + w.to(at::kFloat)))
          .to(at::kBFloat16);
  CHECK(max_abs_diff(rms_norm(x, w, {.eps = 1e-6, .plus_one = true}), once) == 0);
}

TEST_CASE("rms_norm and swiglu of no rows have gradients of zero") {
  const at::Tensor x = at::zeros({0, 4}, at::kDouble).set_requires_grad(true), w = leaf({4});
  const at::Tensor y = swiglu(rms_norm(x, w, {1e-6}));
  CHECK(y.sizes() == at::IntArrayRef({0, 2}));
  y.sum().backward();
  CHECK(w.grad().abs().sum().item<double>() == 0);
}

TEST_CASE("operands that do not fit are refused, each by its name") {
  using Catch::Matchers::Contains;
  const at::Tensor x = at::ones({3, 4}), w = at::ones({4});
  const auto elsewhere = at::TensorOptions().device(at::kMeta);
  CHECK_THROWS_WITH(rms_norm(x, at::ones({3}), {1e-6}),
                    Contains("[3] is not the tail of x's [3, 4]"));
  CHECK_THROWS_WITH(rms_norm(x, at::ones({4}, at::kDouble), {1e-6}),
                    Contains("rms_norm: x is Float, weight Double"));
  CHECK_THROWS_WITH(rms_norm(x, at::ones({4}, elsewhere), {1e-6}),
                    Contains("rms_norm: x is on cpu, weight on meta"));
  CHECK_THROWS_WITH(add_rms_norm(x, at::ones({3, 4}, elsewhere), w, {1e-6}),
                    Contains("add_rms_norm: x is on cpu, branch on meta"));
  CHECK_THROWS_WITH(add_rms_norm(x, at::ones({2, 4}), w, {1e-6}), Contains("branch [2, 4]"));
  CHECK_THROWS_WITH(swiglu(at::ones({2, 3})), Contains("[2, 3]"));
  CHECK_THROWS_WITH(swiglu(at::ones({2, 4}, at::kLong)), Contains("Long"));
  CHECK_THROWS_WITH(clamped_swiglu(at::ones({2, 4}), 0, 1.5), Contains("limit"));

  const RopeTables tables =
      rope_tables(rope_frequencies({4, 10000, {}}), at::tensor({0, 5}, at::kLong), at::kFloat);
  const at::Tensor heads = at::ones({2, 5, 4});
  CHECK_THROWS_WITH(norm_and_rotate(heads, {4, 2}, {}, tables), Contains("4 query and 2 key"));
  CHECK_THROWS_WITH(norm_and_rotate(at::ones({3, 5, 4}), {2, 1}, {}, tables),
                    Contains("need cos and sin [3, 1, 2]"));
  CHECK_THROWS_WITH(norm_and_rotate(heads, {2, 1}, {w, at::Tensor()}, tables),
                    Contains("come together"));
  CHECK_THROWS_WITH(norm_and_rotate(heads, {2, 1}, {w, at::ones({3})}, tables),
                    Contains("weights [4]"));
  CHECK_THROWS_WITH(norm_and_rotate(heads, {2, 1}, {w, at::ones({4}, elsewhere)}, tables),
                    Contains("heads is on cpu, the key norm on meta"));
  CHECK_THROWS_WITH(norm_and_rotate(heads.to(at::kBFloat16), {2, 1}, {}, tables),
                    Contains("heads is BFloat16, cos Float"));
}

TEST_CASE("swiglu: forward by the formula, gradient by finite differences") {
  at::manual_seed(3);
  const at::Tensor x = leaf({4, 10});
  const at::Tensor gate = x.narrow(1, 0, 5), up = x.narrow(1, 5, 5);
  CHECK(max_abs_diff(swiglu(x), gate * at::sigmoid(gate) * up) < 1e-14);
  CHECK(worst_gradient_error([&] { return weighted_sum(swiglu(x)); }, {x}) < 1e-8);
}

TEST_CASE("geglu and clamped_swiglu: forward by the formula, gradient by finite differences") {
  at::manual_seed(8);
  const at::Tensor x = leaf({4, 10});
  const at::Tensor gate = x.narrow(1, 0, 5), up = x.narrow(1, 5, 5);
  const at::Tensor inner = 0.7978845608028654 * (gate + 0.044715 * gate.pow(3));
  CHECK(max_abs_diff(geglu(x), 0.5 * gate * (1 + inner.tanh()) * up) < 1e-14);
  CHECK(worst_gradient_error([&] { return weighted_sum(geglu(x)); }, {x}) < 1e-8);

  // Columns take turns; some of them beyond the limits.
  const at::Tensor wide = (at::randn({6, 10}, at::kDouble) * 6).set_requires_grad(true);
  const at::Tensor g = wide.slice(1, 0, 10, 2).clamp_max(7);
  const at::Tensor u = wide.slice(1, 1, 10, 2).clamp(-7, 7);
  CHECK((g == 7).any().item<bool>());
  CHECK((u == -7).any().item<bool>());
  CHECK(max_abs_diff(clamped_swiglu(wide, 7, 1.5), (u + 1) * g * at::sigmoid(1.5 * g)) < 1e-13);
  CHECK(worst_gradient_error([&] { return weighted_sum(clamped_swiglu(wide, 7, 1.5)); }, {wide}) <
        1e-7);
}

// The heads by the textbook: normed where there are norms, then turned as complex numbers.
at::Tensor turned(at::Tensor x, const at::Tensor& norm, double eps, const at::Tensor& angle) {
  const int64_t half = x.size(2) / 2;
  if (norm.defined()) {
    x = x / (x.square().mean(-1, true) + eps).sqrt() * norm;
  }
  const at::Tensor z = at::complex(x.narrow(2, 0, half), x.narrow(2, half, half)) *
                       at::complex(angle.cos().to(at::kDouble), angle.sin().to(at::kDouble));
  return at::cat({at::real(z), at::imag(z)}, 2);
}

TEST_CASE("norm_and_rotate norms each head and turns pairs (i, i + D/2) by position * frequency") {
  at::manual_seed(4);
  const double eps = 1e-3;
  const at::Tensor positions = at::tensor({0, 5, 17}, at::kLong);
  const RopeFrequencies freq = rope_frequencies({8, 10000, {}});
  const RopeTables tables = rope_tables(freq, positions, at::kDouble);
  const at::Tensor angle = positions.to(at::kFloat).view({3, 1, 1}) * freq.inverse_d;
  for (const auto& [h, k, v] : {std::tuple{2, 1, 1}, {3, 3, 3}, {5, 1, 0}}) {
    for (const auto& [normed, plus_one] : {std::pair{false, false}, {true, false}, {true, true}}) {
      CAPTURE(h, k, v, normed, plus_one);
      const at::Tensor heads = leaf({3, h + k + v, 8});
      const HeadNorms norms{normed ? leaf({8}) : at::Tensor(),
                            normed ? leaf({8}) : at::Tensor(),
                            {.eps = eps, .plus_one = plus_one}};
      const RotatedHeads out = norm_and_rotate(heads, {h, k}, norms, tables);
      const at::Tensor x = heads.detach();
      const auto factor = [plus_one = plus_one](const at::Tensor& w) {
        return plus_one ? 1 + w : w;
      };
      CHECK(max_abs_diff(out.q_sHD,
                         turned(x.narrow(1, 0, h), factor(norms.query.leaf), eps, angle)) < 1e-14);
      CHECK(max_abs_diff(out.k_sKD, turned(x.narrow(1, h, k), factor(norms.key.leaf), eps, angle)) <
            1e-14);
      CHECK(max_abs_diff(out.v, x.narrow(1, h + k, v)) == 0);
      std::vector<at::Tensor> leaves{heads};
      if (normed) {
        leaves.insert(leaves.end(), {norms.query.leaf, norms.key.leaf});
      }
      const auto loss = [&, h = h, k = k] {
        const RotatedHeads again = norm_and_rotate(heads, {h, k}, norms, tables);
        return weighted_sum(again.q_sHD) + 2 * weighted_sum(again.k_sKD) +
               3 * weighted_sum(again.v);
      };
      CHECK(worst_gradient_error(loss, leaves) < 1e-8);
    }
  }
}

TEST_CASE("norm_and_rotate of no tokens has gradients of zero") {
  const RopeTables tables =
      rope_tables(rope_frequencies({4, 10000, {}}), at::empty({0}, at::kLong), at::kDouble);
  const at::Tensor heads = at::zeros({0, 4, 4}, at::kDouble).set_requires_grad(true);
  const HeadNorms norms{leaf({4}), leaf({4}), {1e-6}};
  const RotatedHeads out = norm_and_rotate(heads, {2, 1}, norms, tables);
  CHECK(out.q_sHD.sizes() == at::IntArrayRef({0, 2, 4}));
  (out.q_sHD.sum() + out.k_sKD.sum() + out.v.sum()).backward();
  CHECK(norms.query.leaf.grad().abs().sum().item<double>() == 0);
  CHECK(norms.key.leaf.grad().abs().sum().item<double>() == 0);
}

TEST_CASE("llama3 scaling equals transformers on short, interpolated and long waves") {
  // Factor 8 over 8192, low 1, high 4.
  const at::Tensor freq = rope_frequencies({64, 500000, Llama3Rope{}}).inverse_d;
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
