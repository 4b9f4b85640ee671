// Norms, rotations and gates of bf16 rows on the CPU. Oracle: their formulas in fp64 of the same
// bf16 operands. Guards: sizes that fill no vector register, rows without a branch or a residual,
// weights plus one, gates of any size, bits that depend on the number of threads.
#include "engine/ops/bf16_rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "engine/ops/gated_activation.h"
#include "engine/ops/qk_norm_rope.h"
#include "engine/ops/rms_norm.h"
#include "tests/support/catch.h"

namespace ringside::engine::bf16_rows_test {
namespace {

at::Tensor random(std::vector<int64_t> shape, double size = 1.0) {
  return (at::randn(shape) * size).to(at::kBFloat16);
}

at::Tensor exact(const at::Tensor& x) { return x.to(at::kDouble); }

// Largest difference as a share of what rounding the result once (`roundings` times) may leave.
double share(const at::Tensor& y, const at::Tensor& expected, double roundings = 1.0) {
  const double unit = y.scalar_type() == at::kBFloat16 ? 0x1p-8 : 0x1p-20;
  const at::Tensor allowed = roundings * unit * expected.abs() + 1e-5;
  return ((exact(y) - expected).abs() / allowed).max().item<double>();
}

constexpr double kEps = 1e-6;

struct Norm {
  at::Tensor y, rstd, dx, d_weight;
};

Norm norm_in_fp64(const at::Tensor& x, const at::Tensor& dy, const at::Tensor& weight,
                  bool plus_one) {
  const at::Tensor w = plus_one ? exact(weight) + 1 : exact(weight);
  const at::Tensor rstd = 1 / (exact(x).square().mean(-1, true) + kEps).sqrt();
  const at::Tensor n = exact(x) * rstd, g = exact(dy) * w;
  return {n * w, rstd, rstd * (g - n * (g * n).mean(-1, true)), (exact(dy) * n).sum(0)};
}

TEST_CASE("bf16 norms of rows of any size are those of fp64, rounded") {
  at::manual_seed(1);
  for (const int64_t size : {1, 7, 16, 33, 576}) {
    for (const bool plus_one : {false, true}) {
      CAPTURE(size, plus_one);
      const at::Tensor x = random({130, size}), branch = random({130, size});
      const at::Tensor weight = random({size}), dy = random({130, size});
      const auto [sum, y, rstd] = operators::add_rms_norm(x, branch, weight, kEps, false, plus_one);
      CHECK(at::equal(sum, x + branch));
      const Norm expected = norm_in_fp64(sum, dy, weight, plus_one);
      CHECK(share(y, expected.y, plus_one ? 1 : 2) < 1);
      CHECK(share(rstd, expected.rstd) < 1);
      CHECK(at::equal(std::get<0>(operators::rms_norm(sum, weight, kEps, false, plus_one)), y));
      const auto [dx, d_weight] =
          operators::rms_norm_backward(dy, sum, weight, rstd, std::nullopt, plus_one);
      CHECK((exact(dx) - expected.dx).abs().max().item<double>() <
            0x1p-8 * expected.dx.abs().max().item<double>() + 1e-5);
      CHECK((exact(d_weight) - expected.d_weight).abs().max().item<double>() < 1e-4);
      const auto with_residual =
          std::get<0>(operators::rms_norm_backward(dy, sum, weight, rstd, branch, plus_one));
      const at::Tensor both = expected.dx + exact(branch);
      CHECK((exact(with_residual) - both).abs().max().item<double>() <
            0x1p-8 * both.abs().max().item<double>() + 1e-5);
    }
  }
}

TEST_CASE("bf16 heads are rotated and turned back as in fp64, values left alone") {
  at::manual_seed(2);
  for (const int64_t d : {2, 20, 64}) {
    const int64_t s = 37, h = 3, k = 2, half = d / 2;
    CAPTURE(d);
    const at::Tensor heads = random({s, h + 2 * k, d});
    const at::Tensor cos = random({s, 1, half}), sin = random({s, 1, half});
    const auto turned = [&](const at::Tensor& x, double sign) {
      const at::Tensor a = exact(x).narrow(2, 0, half), b = exact(x).narrow(2, half, half);
      return at::cat(
          {a * exact(cos) - sign * b * exact(sin), b * exact(cos) + sign * a * exact(sin)}, 2);
    };
    const auto close = [](const at::Tensor& y, const at::Tensor& expected) {
      return (exact(y) - expected).abs().max().item<double>() <
             0x1p-8 * expected.abs().max().item<double>();
    };
    const auto [qk, rstd] = operators::qk_norm_rope(heads, h, k, std::nullopt, std::nullopt, cos,
                                                    sin, kEps, false, false);
    CHECK(close(qk, turned(heads.narrow(1, 0, h + k), 1)));
    const at::Tensor dq = random({s, h, d}), dk = random({s, k, d}), dv = random({s, k, d});
    const auto [d_heads, d_norms] = operators::qk_norm_rope_backward(
        dq, dk, dv, heads, std::nullopt, std::nullopt, rstd, cos, sin, false);
    CHECK(close(d_heads.narrow(1, 0, h), turned(dq, -1)));
    CHECK(close(d_heads.narrow(1, h, k), turned(dk, -1)));
    CHECK(at::equal(d_heads.narrow(1, h + k, k), dv));
  }
}

TEST_CASE("bf16 SwiGLU and its gradient are those of fp64, for gates of any size") {
  at::manual_seed(3);
  for (const int64_t f : {1, 15, 200}) {
    for (const double size : {0.1, 3.0, 100.0}) {
      CAPTURE(f, size);
      const at::Tensor gate_up = random({21, 2 * f}, size), dy = random({21, f});
      const at::Tensor g = exact(gate_up).narrow(1, 0, f), u = exact(gate_up).narrow(1, f, f);
      const at::Tensor s = at::sigmoid(g), d = exact(dy);
      CHECK(share(operators::swiglu(gate_up), g * s * u) < 1);
      const at::Tensor grad = operators::swiglu_backward(dy, gate_up);
      const at::Tensor slope = d * u * s;
      // What cancels in the slope leaves more of it.
      CHECK(((exact(grad).narrow(1, 0, f) - slope * (1 + g * (1 - s))).abs() /
             (0x1p-8 * (slope * (1 + (g * (1 - s)).abs())).abs() + 1e-5))
                .max()
                .item<double>() < 1);
      CHECK(share(grad.narrow(1, f, f), d * g * s) < 1);
    }
  }
}

TEST_CASE("the bits of bf16 rows do not depend on the number of threads") {
  at::manual_seed(4);
  const at::Tensor x = random({700, 96}), dy = random({700, 96}), weight = random({96});
  const auto run = [&] {
    const auto [y, rstd] = operators::rms_norm(x, weight, kEps, false, false);
    const auto [dx, d_weight] = operators::rms_norm_backward(dy, x, weight, rstd, y, false);
    return at::cat({y.flatten().to(at::kFloat), dx.flatten().to(at::kFloat), d_weight});
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = run();
  for (const int count : {2, 5}) {
    at::set_num_threads(count);
    CHECK(at::equal(run(), alone));
  }
  at::set_num_threads(threads);
}

TEST_CASE("rows with gaps and other dtypes are not taken") {
  const at::Tensor x = random({4, 8});
  CHECK(bf16::takes({x, at::Tensor()}));
  CHECK_FALSE(bf16::takes({x.t()}));
  CHECK_FALSE(bf16::takes({x, x.to(at::kFloat)}));
  const at::Tensor weight = random({4});
  const auto of_copy = operators::rms_norm(x.t().contiguous(), weight, kEps, false, false);
  const auto of_view = operators::rms_norm(x.t(), weight, kEps, false, false);
  CHECK(at::allclose(std::get<0>(of_view), std::get<0>(of_copy), 0x1p-7));
}

}  // namespace
}  // namespace ringside::engine::bf16_rows_test
