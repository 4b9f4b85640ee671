// Guards the index arithmetic of the decoder's CUDA kernels: runs their row functions on the host,
// lane by lane as a group of threads would, against the CPU operators. Shapes: odd numbers of
// heads, no tokens, sizes that no load of 16 bytes divides, vocabularies that no block divides.
#include "engine/nn/cuda/row_functions.h"

#include <ATen/ATen.h>

#include <limits>
#include <optional>
#include <vector>

#include "engine/nn/cpu_operators.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"

namespace ringside::engine {
namespace {

using rows::Lane;
using test::max_abs_diff;

// Groups of lanes as the kernels start them, and one that leaves most lanes without an element.
const std::vector<int64_t> kLanes{32, 96, 512};

template <class F>
void for_each_lane(int64_t lanes, F f) {
  for (int64_t i = 0; i < lanes; ++i) {
    f(Lane{i, lanes});
  }
}

template <class Acc, class F>
Acc sum_of_lanes(int64_t lanes, F f) {
  Acc total = 0;
  for_each_lane(lanes, [&](Lane lane) { total += f(lane); });
  return total;
}

template <class T>
constexpr at::ScalarType kDtype = c10::CppTypeToScalarType<T>::value;

// What rounding to T may cost: two steps of the last place of numbers up to `size`.
template <class T>
double rounding(double size) {
  if constexpr (std::is_same_v<T, double>) {
    return 1e-13 * size;
  } else if constexpr (std::is_same_v<T, float>) {
    return 4e-6 * size;
  } else {
    return size * 2 * static_cast<double>(std::numeric_limits<T>::epsilon());
  }
}

double largest(const at::Tensor& x) {
  return x.numel() == 0 ? 1.0 : std::max(1.0, x.abs().max().to(at::kDouble).item<double>());
}

template <class T>
void check_close(const at::Tensor& got, const at::Tensor& expected) {
  CHECK(max_abs_diff(got, expected) <= rounding<T>(largest(expected)));
}

template <class T>
at::Tensor random(at::IntArrayRef shape) {
  return at::randn(shape).to(kDtype<T>);
}

template <class T, class Acc, int kWidth>
void check_norm(int64_t num_rows, int64_t size, bool in_fp32, bool plus_one) {
  CAPTURE(num_rows, size, kWidth, in_fp32, plus_one);
  const at::Tensor x = random<T>({num_rows, size}), branch = random<T>({num_rows, size});
  const at::Tensor weight = random<T>({size}), dy = random<T>({num_rows, size});
  const auto [sum, y, rstd] = cpu::add_rms_norm(x, branch, weight, 1e-5, in_fp32, plus_one);
  const auto [dx, d_weight] = cpu::rms_norm_backward(dy, sum, weight, rstd, branch, plus_one);
  for (const int64_t lanes : kLanes) {
    at::Tensor got_sum = at::full_like(x, 99), got_y = at::full_like(x, 99);
    at::Tensor got_dx = at::full_like(x, 99);
    at::Tensor got_d_weight = at::zeros({size}, rstd.options());
    for (int64_t r = 0; r < num_rows; ++r) {
      const auto at = [&](const at::Tensor& t) { return t.mutable_data_ptr<T>() + r * size; };
      const rows::NormRow<T, Acc, kWidth> row{
          at(x), at(branch), weight.mutable_data_ptr<T>(), at(got_sum), at(got_y), size, plus_one};
      const Acc squares = sum_of_lanes<Acc>(lanes, [&](Lane lane) { return row.squares(lane); });
      const Acc root = rows::reciprocal_root(squares / static_cast<Acc>(size), 1e-5);
      CHECK(root == Approx(rstd.view({-1})[r].item<double>()).epsilon(1e-5));
      for_each_lane(lanes, [&](Lane lane) { row.write(lane, root); });

      const rows::NormGradRow<T, Acc, kWidth> grad{
          at(dy),     at(sum),    weight.mutable_data_ptr<T>(),
          at(branch), at(got_dx), got_d_weight.mutable_data_ptr<Acc>(),
          size,       plus_one};
      const Acc mean =
          sum_of_lanes<Acc>(lanes, [&](Lane lane) { return grad.products(lane, root); }) /
          static_cast<Acc>(size);
      for_each_lane(lanes, [&](Lane lane) { grad.write(lane, root, mean); });
    }
    CHECK(at::equal(got_sum, sum));
    check_close<T>(got_y, y);
    if (num_rows > 0 && std::is_same_v<T, c10::BFloat16>) {
      // Rounded where the operator rounds: only another last place of rstd can differ.
      CHECK((got_y == y).to(at::kFloat).mean().item<float>() > 0.98f);
    }
    check_close<T>(got_dx, dx);
    check_close<T>(got_d_weight.to(d_weight.scalar_type()), d_weight);
  }
}

TEST_CASE("row functions of the norm equal the CPU operator") {
  at::manual_seed(1);
  for (const auto& [num_rows, plus_one] :
       {std::pair{0, false}, {1, false}, {3, false}, {3, true}}) {
    check_norm<float, float, 1>(num_rows, 13, false, plus_one);
    check_norm<float, float, 4>(num_rows, 520, false, plus_one);
    check_norm<double, double, 1>(num_rows, 7, false, plus_one);
    check_norm<double, double, 2>(num_rows, 34, false, plus_one);
    check_norm<c10::BFloat16, float, 1>(num_rows, 100, false, plus_one);
    check_norm<c10::Half, float, 1>(num_rows, 100, false, plus_one);
    check_norm<c10::BFloat16, float, 8>(num_rows, 264, false, plus_one);
    check_norm<c10::Half, float, 8>(num_rows, 264, false, plus_one);
  }
}

struct HeadCase {
  int64_t tokens, query, key, value, head_dim;
};

enum class HeadNorm { kNone, kPlain, kPlusOne };

// The heads as the kernels see them: all items of a grid, one warp each.
template <class T, class Acc, int kWidth>
void check_heads(const HeadCase& c, HeadNorm norm_kind) {
  const bool normed = norm_kind != HeadNorm::kNone, plus_one = norm_kind == HeadNorm::kPlusOne;
  CAPTURE(c.tokens, c.query, c.key, c.value, c.head_dim, kWidth, normed, plus_one);
  const int64_t s = c.tokens, d = c.head_dim, half = d / 2;
  const int64_t n = c.query + c.key, all = n + c.value;
  // Part of a wider tensor: tokens are further apart than their heads are long.
  const at::Tensor heads = random<T>({s, all + 1, d}).narrow(1, 0, all);
  const at::Tensor q_norm = random<T>({d}), k_norm = random<T>({d});
  const at::Tensor cos = random<T>({s, 1, half}), sin = random<T>({s, 1, half});
  const auto some = [normed](const at::Tensor& t) {
    return normed ? std::make_optional(t) : std::nullopt;
  };
  const auto [qk, rstd] = cpu::qk_norm_rope(heads, c.query, c.key, some(q_norm), some(k_norm), cos,
                                            sin, 1e-5, false, plus_one);
  const at::Tensor d_qk = random<T>({s, n, d});
  const auto [d_heads, d_norms] = cpu::qk_norm_rope_backward(
      d_qk.narrow(1, 0, c.query), d_qk.narrow(1, c.query, c.key), random<T>({s, c.value, d}), heads,
      some(q_norm), some(k_norm), rstd, cos, sin, plus_one);
  const auto rows_of = [](const at::Tensor& t) {
    return rows::HeadRows<T>{t.mutable_data_ptr<T>(), t.stride(0), t.stride(1)};
  };
  at::Tensor got = at::full_like(qk, 99), got_d = at::full_like(qk, 99);
  at::Tensor got_norms = at::zeros({2, d}, at::dtype(kDtype<Acc>));
  for (int64_t item = 0; item < s * n; ++item) {
    const auto [token, head] = rows::token_head(item, n);
    const at::Tensor& norm = head < c.query ? q_norm : k_norm;
    const T* weight = normed ? norm.const_data_ptr<T>() : nullptr;
    const T* c_row = cos.const_data_ptr<T>() + token * half;
    const T* s_row = sin.const_data_ptr<T>() + token * half;
    const T* x = rows_of(heads).at(token, head);
    const rows::RotatedRow<T, Acc, kWidth> row{
        x, weight, c_row, s_row, rows_of(got).at(token, head), half, plus_one};
    const Acc squares = sum_of_lanes<Acc>(32, [&](Lane lane) { return row.squares(lane); });
    const Acc root = rows::reciprocal_root(squares / static_cast<Acc>(d), 1e-5);
    for_each_lane(32, [&](Lane lane) { row.write(lane, root); });

    const rows::RotatedGradRow<T, Acc, kWidth> grad{
        rows_of(d_qk).at(token, head),
        x,
        weight,
        c_row,
        s_row,
        rows_of(got_d).at(token, head),
        got_norms.mutable_data_ptr<Acc>() + (head < c.query ? 0 : d),
        half,
        plus_one};
    const Acc mean = !normed ? Acc(0) : sum_of_lanes<Acc>(32, [&](Lane lane) {
                                          return grad.products(lane, root);
                                        }) / static_cast<Acc>(d);
    for_each_lane(32, [&](Lane lane) { grad.write(lane, root, mean); });
  }
  check_close<T>(got, qk);
  check_close<T>(got_d, d_heads.narrow(1, 0, n));
  if (normed) {
    check_close<T>(got_norms.to(d_norms.scalar_type()), d_norms);
  }
}

TEST_CASE("row functions of norm and rotation equal the CPU operator") {
  at::manual_seed(2);
  for (const HeadCase& c : {HeadCase{5, 3, 1, 1, 128},
                            {4, 1, 1, 0, 4},
                            {2, 5, 5, 5, 20},
                            {0, 4, 2, 2, 64},
                            {3, 7, 3, 3, 256}}) {
    for (const HeadNorm norm : {HeadNorm::kNone, HeadNorm::kPlain, HeadNorm::kPlusOne}) {
      check_heads<float, float, 2>(c, norm);
      check_heads<double, double, 1>(c, norm);
      check_heads<c10::BFloat16, float, 2>(c, norm);
      check_heads<c10::Half, float, 2>(c, norm);
    }
  }
  for (const HeadNorm norm :
       {HeadNorm::kNone, HeadNorm::kPlain, HeadNorm::kPlusOne}) {  // half a head is odd
    check_heads<float, float, 1>({3, 3, 1, 2, 6}, norm);
    check_heads<c10::BFloat16, float, 1>({3, 2, 2, 2, 10}, norm);
    check_heads<c10::Half, float, 1>({3, 2, 2, 2, 10}, norm);
  }
}

template <class T, int kWidth>
void check_swiglu(int64_t s, int64_t f) {
  CAPTURE(s, f, kWidth);
  const at::Tensor gate_up = random<T>({s, 2 * f}), dy = random<T>({s, f});
  at::Tensor out = at::full({s, f}, 99, gate_up.options()), d = at::full_like(gate_up, 99);
  for (int64_t item = 0; item < s * f / kWidth; ++item) {
    rows::swiglu_pack<T, kWidth>(gate_up.const_data_ptr<T>(), out.mutable_data_ptr<T>(), f, item);
    rows::swiglu_grad_pack<T, kWidth>(dy.const_data_ptr<T>(), gate_up.const_data_ptr<T>(),
                                      d.mutable_data_ptr<T>(), f, item);
  }
  check_close<T>(out, cpu::swiglu(gate_up));
  check_close<T>(d, cpu::swiglu_backward(dy, gate_up));
}

TEST_CASE("row functions of SwiGLU equal the CPU operator") {
  at::manual_seed(3);
  for (const int64_t s : {0, 1, 5}) {
    check_swiglu<float, 1>(s, 7);
    check_swiglu<float, 4>(s, 36);
    check_swiglu<double, 2>(s, 10);
    check_swiglu<c10::BFloat16, 1>(s, 9);
    check_swiglu<c10::Half, 1>(s, 9);
    check_swiglu<c10::BFloat16, 8>(s, 40);
    check_swiglu<c10::Half, 8>(s, 40);
  }
}

template <class T, class Acc, int kWidth>
void check_scores(int64_t num_rows, int64_t vocab, double spread, bool entropy_gradient) {
  CAPTURE(num_rows, vocab, kWidth, spread, entropy_gradient);
  const auto acc = at::dtype(kDtype<Acc>);
  const at::Tensor logits = (at::randn({num_rows, vocab}) * spread).to(kDtype<T>);
  const at::Tensor targets = at::randint(vocab, {num_rows}, at::kLong);
  const at::Tensor temperature = at::rand({num_rows}).to(kDtype<Acc>) + 0.5;
  const at::Tensor g_lp = at::randn({num_rows}).to(kDtype<Acc>);
  const at::Tensor g_entropy = at::randn({num_rows}).to(kDtype<Acc>);
  const at::Tensor lp = at::empty({num_rows}, acc), entropy = at::empty({num_rows}, acc);
  const at::Tensor lse = at::empty({num_rows}, acc), d_logits = logits.clone();
  cpu::token_scores(logits.clone(), targets, temperature, lp, entropy, lse);
  cpu::token_scores_backward(d_logits, targets, temperature, lse, entropy, g_lp,
                             entropy_gradient ? std::make_optional(g_entropy) : std::nullopt);
  const auto number = [](const at::Tensor& t, int64_t r) { return t.const_data_ptr<Acc>()[r]; };
  for (const int64_t lanes : kLanes) {
    at::Tensor got = logits.clone();
    for (int64_t r = 0; r < num_rows; ++r) {
      T* row_logits = got.mutable_data_ptr<T>() + r * vocab;
      const Acc inverse = Acc(1) / number(temperature, r);
      const int64_t target = targets[r].item<int64_t>();
      const rows::ScoreRow<T, Acc, kWidth> row{row_logits, vocab, inverse};
      rows::ScoreSums<Acc> sums;
      for_each_lane(lanes, [&](Lane lane) { sums.merge(row.scan(lane)); });
      const double tolerance = std::is_same_v<Acc, double> ? 1e-12 : 2e-5;
      CHECK(sums.lse() == Approx(number(lse, r)).margin(tolerance * spread));
      CHECK(sums.entropy() == Approx(number(entropy, r)).margin(tolerance));
      CHECK(row.tempered(target) - sums.lse() == Approx(number(lp, r)).margin(tolerance * spread));
      const rows::ScoreGradRow<T, Acc, kWidth> grad{
          row_logits,      vocab,
          target,          inverse,
          sums.lse(),      sums.entropy(),
          number(g_lp, r), entropy_gradient ? number(g_entropy, r) : Acc(0)};
      for_each_lane(lanes, [&](Lane lane) { grad.write(lane); });
    }
    check_close<T>(got, d_logits);
  }
}

TEST_CASE("row functions of the token scores equal the CPU operator") {
  at::manual_seed(4);
  for (const bool entropy_gradient : {false, true}) {
    for (const double spread : {1.0, 8.0}) {
      check_scores<float, float, 1>(3, 777, spread, entropy_gradient);
      check_scores<float, float, 4>(2, 4096 + 8, spread, entropy_gradient);
      check_scores<double, double, 1>(2, 3, spread, entropy_gradient);
      check_scores<c10::BFloat16, float, 8>(2, 1000, spread, entropy_gradient);
      check_scores<c10::Half, float, 8>(2, 1000, spread, entropy_gradient);
      check_scores<c10::BFloat16, float, 1>(2, 1001, spread, entropy_gradient);
      check_scores<c10::Half, float, 1>(2, 1001, spread, entropy_gradient);
    }
  }
  check_scores<float, float, 1>(0, 5, 1.0, true);
  check_scores<float, float, 1>(2, 1, 1.0, true);
}

TEST_CASE("sums of scores pass over logits of -inf, alone and between others") {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits{kNone, 2.0f, kNone, 1.0f, kNone};
  const rows::ScoreRow<float, float, 1> row{logits.data(), 5, 1.0f};
  rows::ScoreSums<float> sums;
  for_each_lane(3, [&](Lane lane) { sums.merge(row.scan(lane)); });
  CHECK(sums.lse() == Approx(2.0 + std::log(1.0 + std::exp(-1.0))));
  CHECK(sums.entropy() == Approx(0.582203));  // of probabilities 0.731, 0.269
  std::vector<float> d = logits;
  rows::ScoreGradRow<float, float, 1>{d.data(), 5, 1, 1.0f, sums.lse(), sums.entropy(), 1.0f, 1.0f}
      .write({0, 1});
  CHECK(d[0] == 0.0f);
  CHECK(std::isfinite(d[1]));
}

}  // namespace
}  // namespace ringside::engine
