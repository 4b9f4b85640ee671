// Guards the CUDA kernels of the decoder's operators and the code that calls them, without a GPU:
// results that differ from the CPU operators by more than rounding or depend on the order of
// threads, races between barriers, barriers that not all threads reach, accesses out of bounds or
// misaligned, reads of memory that nobody wrote. Kernels run on the host
// (tests/support/cuda_host). Shapes: sizes that no load of 16 bytes divides and some that it does,
// odd numbers of heads, no tokens, more rows than the blocks that leave partial sums, the largest
// sizes that fit into shared memory.
#include <cmath>
#include <optional>
#include <tuple>

#include "tests/cuda_host/checks.h"
#include "tests/cuda_host/on_cuda.h"

namespace ringside::engine {
namespace {

using test::check_close;
using test::in_both_orders;
using Tensors = std::vector<at::Tensor>;

const std::vector<at::ScalarType> kDtypes{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape).to(dtype);
}

std::optional<at::Tensor> when(bool given, const at::Tensor& tensor) {
  return given ? std::make_optional(tensor) : std::nullopt;
}

struct NormCase {
  int64_t rows, size;
  bool in_fp32 = false, plus_one = false;
};

void check_norm(const NormCase& c, at::ScalarType dtype) {
  CAPTURE(c.rows, c.size, c.in_fp32, c.plus_one, dtype);
  cuda_host::DeviceTensors device;
  const at::Tensor x = random({c.rows, c.size}, dtype), branch = random({c.rows, c.size}, dtype);
  const at::Tensor weight = random({c.size}, dtype), dy = random({c.rows, c.size}, dtype);
  const auto compute = [&](const auto& add_norm, const auto& norm, const auto& backward) {
    const auto [sum, y, rstd] = add_norm(x, branch, weight, 1e-5, c.in_fp32, c.plus_one);
    const auto [y_alone, rstd_alone] = norm(x, weight, 1e-5, c.in_fp32, c.plus_one);
    const auto [dx, d_weight] = backward(dy, sum, weight, rstd, branch, c.plus_one);
    const auto [dx_alone, d_weight_alone] =
        backward(dy, sum, weight, rstd, std::nullopt, c.plus_one);
    return Tensors{sum, y, rstd, y_alone, rstd_alone, dx, d_weight, dx_alone, d_weight_alone};
  };
  const Tensors got = in_both_orders(device, [&](cuda_host::DeviceTensors& on) {
    return on.launching([&] {
      return compute(RINGSIDE_ON_CUDA(add_rms_norm), RINGSIDE_ON_CUDA(rms_norm),
                     RINGSIDE_ON_CUDA(rms_norm_backward));
    });
  });
  const Tensors expected =
      compute(operators::add_rms_norm, operators::rms_norm, operators::rms_norm_backward);
  const bool fp32_sums = dtype == at::kDouble && c.in_fp32;
  check_close(got, expected, fp32_sums ? at::kFloat : dtype);
  CHECK(at::equal(got[0], expected[0]));
  if (c.rows > 0 && dtype == at::kBFloat16) {
    // Rounded where the operator rounds: only another last place of rstd can differ.
    CHECK((got[1] == expected[1]).to(at::kFloat).mean().item<float>() > 0.98f);
  }
}

TEST_CASE("kernels of the norm equal the CPU operator") {
  at::manual_seed(1);
  for (const auto dtype : kDtypes) {
    for (const bool plus_one : {false, true}) {
      check_norm({3, 13, false, plus_one}, dtype);
      check_norm({2, 264, true, plus_one}, dtype);
    }
    check_norm({0, 16}, dtype);
    check_norm({1, 1}, dtype);
    check_norm({1, 2056}, dtype);
    check_norm({2, 1030}, dtype);
  }
  check_norm({600, 8}, at::kBFloat16);  // more rows than blocks with partial sums
}

struct HeadCase {
  int64_t tokens, query, key, value, head_dim;
};

void check_heads(const HeadCase& c, at::ScalarType dtype, bool normed, bool plus_one) {
  CAPTURE(c.tokens, c.query, c.key, c.value, c.head_dim, dtype, normed, plus_one);
  cuda_host::DeviceTensors device;
  const int64_t s = c.tokens, d = c.head_dim, n = c.query + c.key;
  // Part of a wider tensor: tokens are further apart than their heads are long.
  const at::Tensor heads = random({s, n + c.value + 1, d}, dtype).narrow(1, 0, n + c.value);
  const at::Tensor cos = random({s, 1, d / 2}, dtype), sin = random({s, 1, d / 2}, dtype);
  const at::Tensor q_norm = random({d}, dtype), k_norm = random({d}, dtype);
  const at::Tensor d_qk = random({s, n, d}, dtype), dv = random({s, c.value, d}, dtype);
  const auto compute = [&](const auto& forward, const auto& backward) {
    const auto [qk, rstd] = forward(heads, c.query, c.key, when(normed, q_norm),
                                    when(normed, k_norm), cos, sin, 1e-5, false, plus_one);
    const auto [d_heads, d_norms] =
        backward(d_qk.narrow(1, 0, c.query), d_qk.narrow(1, c.query, c.key), dv, heads,
                 when(normed, q_norm), when(normed, k_norm), rstd, cos, sin, plus_one);
    return Tensors{qk, rstd, d_heads, d_norms};
  };
  const Tensors got = in_both_orders(device, [&](cuda_host::DeviceTensors& on) {
    return on.launching([&] {
      return compute(RINGSIDE_ON_CUDA(qk_norm_rope), RINGSIDE_ON_CUDA(qk_norm_rope_backward));
    });
  });
  check_close(got, compute(operators::qk_norm_rope, operators::qk_norm_rope_backward), dtype);
}

TEST_CASE("kernels of norm and rotation of heads equal the CPU operator") {
  at::manual_seed(2);
  for (const auto dtype : kDtypes) {
    for (const auto& [normed, plus_one] : {std::pair{false, false}, {true, false}, {true, true}}) {
      check_heads({5, 3, 1, 1, 128}, dtype, normed, plus_one);
      check_heads({3, 1, 1, 0, 4}, dtype, normed, plus_one);
      check_heads({2, 5, 5, 5, 20}, dtype, normed, plus_one);
      check_heads({0, 4, 2, 2, 64}, dtype, normed, plus_one);
      check_heads({3, 2, 2, 2, 10}, dtype, normed, plus_one);  // half a head is odd
    }
  }
  check_heads({2, 3, 1, 1, 384}, at::kDouble, true, false);  // all of the shared memory
  check_heads({2, 3, 1, 1, 768}, at::kBFloat16, true, false);
  check_heads({150, 2, 1, 1, 8}, at::kFloat, true, false);  // more heads than blocks
}

void check_gated(int64_t s, int64_t f, at::ScalarType dtype) {
  CAPTURE(s, f, dtype);
  constexpr double kLimit = 1.25, kAlpha = 1.5;  // so that many elements are clamped
  cuda_host::DeviceTensors device;
  const at::Tensor gate_up = random({s, 2 * f}, dtype), dy = random({s, f}, dtype);
  const auto compute = [&](const auto& silu, const auto& d_silu, const auto& gelu,
                           const auto& d_gelu, const auto& clamped, const auto& d_clamped) {
    return Tensors{silu(gate_up),
                   d_silu(dy, gate_up),
                   gelu(gate_up),
                   d_gelu(dy, gate_up),
                   clamped(gate_up, kLimit, kAlpha),
                   d_clamped(dy, gate_up, kLimit, kAlpha)};
  };
  const Tensors got = in_both_orders(device, [&](cuda_host::DeviceTensors& on) {
    return on.launching([&] {
      return compute(RINGSIDE_ON_CUDA(swiglu), RINGSIDE_ON_CUDA(swiglu_backward),
                     RINGSIDE_ON_CUDA(geglu), RINGSIDE_ON_CUDA(geglu_backward),
                     RINGSIDE_ON_CUDA(clamped_swiglu), RINGSIDE_ON_CUDA(clamped_swiglu_backward));
    });
  });
  check_close(got,
              compute(operators::swiglu, operators::swiglu_backward, operators::geglu,
                      operators::geglu_backward, operators::clamped_swiglu,
                      operators::clamped_swiglu_backward),
              dtype);
}

TEST_CASE("kernels of the gated activations equal the CPU operators") {
  at::manual_seed(3);
  for (const auto dtype : kDtypes) {
    for (const auto& [s, f] : {std::pair{0, 16}, {1, 1}, {5, 7}, {3, 40}, {2, 1048}}) {
      check_gated(s, f, dtype);
    }
  }
}

struct ScoreCase {
  int64_t rows, vocab;
  double spread = 1.0;
  bool entropy_gradient = true;
};

void check_scores(const ScoreCase& c, at::ScalarType dtype, const at::Tensor& values) {
  CAPTURE(c.rows, c.vocab, c.spread, c.entropy_gradient, dtype);
  cuda_host::DeviceTensors device;
  const auto acc = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor logits = (values * c.spread).to(dtype);
  const at::Tensor targets = at::randint(c.vocab, {c.rows}, at::kLong);
  const at::Tensor temperature = at::rand({c.rows}).to(acc) + 0.5;
  const at::Tensor g_logprobs = random({c.rows}, acc), g_entropy = random({c.rows}, acc);
  const auto compute = [&](const auto& forward, const auto& backward, const Tensors& t) {
    forward(t[0], targets, temperature, t[1], t[2], t[3]);
    backward(t[4], targets, temperature, t[3], t[2], g_logprobs,
             when(c.entropy_gradient, g_entropy));
  };
  const auto results = [&] {
    const auto numbers = [&] { return at::empty({c.rows}, at::dtype(acc)); };
    return Tensors{logits.clone(), numbers(), numbers(), numbers(), logits.clone()};
  };
  const Tensors got = in_both_orders(device, [&](cuda_host::DeviceTensors& on) {
    Tensors t = results();
    for (const std::size_t result : {1, 2, 3}) {  // nothing is in them before
      t[result] = on.launching([&] { return at::empty({c.rows}, at::dtype(acc)); });
    }
    compute(RINGSIDE_ON_CUDA(token_scores), RINGSIDE_ON_CUDA(token_scores_backward), t);
    return t;
  });
  Tensors expected = results();
  compute(operators::token_scores, operators::token_scores_backward, expected);
  expected[0] = got[0];  // the forward may overwrite the logits, and does so on the CPU alone
  CHECK(at::equal(got[0], logits));
  check_close({got[1], got[2], got[3]}, {expected[1], expected[2], expected[3]},
              dtype == at::kDouble ? at::kDouble : at::kFloat);
  check_close({got[4]}, {expected[4]}, dtype);
}

TEST_CASE("kernels of the token scores equal the CPU operator") {
  at::manual_seed(4);
  const auto check = [](const ScoreCase& c, at::ScalarType dtype) {
    check_scores(c, dtype, at::randn({c.rows, c.vocab}));
  };
  for (const auto dtype : kDtypes) {
    check({3, 777, 8.0, false}, dtype);
    check({2, 4096 + 8}, dtype);
    check({2, 3, 8.0}, dtype);
    check({2, 1000, 1.0, false}, dtype);
    check({0, 5}, dtype);
    check({2, 1}, dtype);
  }
}

TEST_CASE("the kernel of the scores' gradient computes parts of a vocabulary") {
  at::manual_seed(6);
  cuda_host::DeviceTensors device;
  const at::Tensor values = at::randn({3, 40}), targets = at::tensor({2, 13, 39}, at::kLong);
  const at::Tensor temperature = at::rand({3}) + 0.5, lp = at::empty({3});
  const at::Tensor entropy = at::empty({3}), lse = at::empty({3});
  const at::Tensor g_logprobs = at::randn({3}), g_entropy = at::randn({3});
  operators::token_scores(values.clone(), targets, temperature, lp, entropy, lse);
  const at::Tensor whole = values.clone();
  operators::token_scores_backward(whole, targets, temperature, lse, entropy, g_logprobs,
                                   g_entropy);
  Tensors parts;
  for (const auto& [begin, end] : {std::pair{0, 13}, {13, 40}}) {
    const at::Tensor places = targets - begin;
    const at::Tensor own = at::where(places.lt(0).logical_or_(places.ge(end - begin)), -1, places);
    const at::Tensor kernel = values.narrow(1, begin, end - begin).clone(), cpu = kernel.clone();
    RINGSIDE_ON_CUDA(token_scores_backward)
    (kernel, own, temperature, lse, entropy, g_logprobs, g_entropy);
    operators::token_scores_part_backward(cpu, own, temperature, lse, entropy, g_logprobs,
                                          g_entropy);
    check_close({kernel}, {cpu}, at::kFloat);
    parts.push_back(kernel);
  }
  test::check_no_reports();
  check_close({at::cat(parts, 1)}, {whole}, at::kFloat);
}

TEST_CASE("kernels of the token scores pass over logits of -inf") {
  at::manual_seed(5);
  cuda_host::DeviceTensors device;
  // Whole warps have no finite logit.
  const at::Tensor values = at::randn({2, 520});
  values.narrow(1, 32, 400).fill_(-std::numeric_limits<double>::infinity());
  const at::Tensor logits = values.clone(), targets = at::zeros({2}, at::kLong);
  const at::Tensor ones = at::ones({2}), lp = at::empty({2}), entropy = at::empty({2});
  const at::Tensor lse = at::empty({2}), d_logits = values.clone();
  RINGSIDE_ON_CUDA(token_scores)(logits, targets, ones, lp, entropy, lse);
  RINGSIDE_ON_CUDA(token_scores_backward)(d_logits, targets, ones, lse, entropy, ones, ones);
  test::check_no_reports();
  const at::Tensor finite = at::cat({values.narrow(1, 0, 32), values.narrow(1, 432, 88)}, 1);
  const at::Tensor logp = at::log_softmax(finite, 1), p = logp.exp();
  check_close({lse, lp, entropy},
              {at::logsumexp(finite, {1}), logp.select(1, 0), -(p * logp).sum(1)}, at::kFloat);
  CHECK(d_logits.isfinite().all().item<bool>());
  CHECK(d_logits.narrow(1, 32, 400).abs().max().item<float>() == 0.0f);
}

TEST_CASE("the kernel of the token scores stops at a target outside the vocabulary") {
  cuda_host::DeviceTensors device;
  const at::Tensor logits = at::randn({2, 9}), targets = at::tensor({4, 9}, at::kLong);
  const at::Tensor ones = at::ones({2}), lp = at::empty({2}), entropy = at::empty({2});
  CHECK_THROWS_AS(
      RINGSIDE_ON_CUDA(token_scores)(logits, targets, ones, lp, entropy, at::empty({2})),
      c10::Error);
  const auto reports = cuda_host::take_reports();
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].fault == cuda_host::Fault::kAssertion);
  CHECK(reports[0].kernel == "score_kernel");
}

TEST_CASE("the norm's gradient takes the largest rows that shared memory holds, and no larger") {
  at::manual_seed(6);
  for (const auto& [dtype, most] : {std::pair{at::kBFloat16, 12256}, {at::kDouble, 6112}}) {
    check_norm({1, most}, dtype);
    CHECK_THROWS_WITH(check_norm({1, most + 8}, dtype),
                      Catch::Contains("do not fit into shared memory"));
  }
}

}  // namespace
}  // namespace ringside::engine
