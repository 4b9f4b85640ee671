// Guards the CUDA kernels of the decoder's operators: results that differ from the CPU operators by
// more than rounding, results that differ between two runs, operands that are not refused. Linked
// wherever there is nvcc, run where there is a GPU (ctest label gpu); elsewhere it says that it ran
// nothing.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAContext.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "engine/ops/add_transposed_mm.h"
#include "engine/ops/gated_activation.h"
#include "engine/ops/qk_norm_rope.h"
#include "engine/ops/rms_norm.h"
#include "engine/ops/token_scores.h"
#include "tests/support/catch.h"
#include "tests/support/close.h"

namespace ringside::engine {
namespace {

using Tensors = std::vector<at::Tensor>;

bool no_gpu() {
  if (at::cuda::is_available()) {
    return false;
  }
  WARN("no GPU: compiled and linked, not run");
  return true;
}

const std::vector<at::ScalarType> kDtypes{at::kFloat, at::kDouble, at::kBFloat16};

double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 2e-5 : 2.0 / 128;
}

Tensors moved(const Tensors& tensors, at::Device device) {
  Tensors there;
  for (const at::Tensor& tensor : tensors) {
    // Strides are kept, so that views of wider tensors are tested as views.
    there.push_back(
        at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device))
            .copy_(tensor));
  }
  return there;
}

// Calls the operator on both devices with the same values. It may write its operands; they are
// compared too, relative to a tensor's largest value with this bound.
template <class Call>
void check_within(double bound, const char* what, at::ScalarType dtype, const Tensors& operands,
                  Call call) {
  INFO(what << " in " << dtype << " of shape " << operands[0].sizes());
  const auto run = [&](at::Device device) {
    Tensors arguments = moved(operands, device);
    Tensors results = call(arguments);
    results.insert(results.end(), arguments.begin(), arguments.end());
    return results;
  };
  const Tensors expected = run(at::kCPU), got = run(at::kCUDA), again = run(at::kCUDA);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    REQUIRE(got[i].sizes() == expected[i].sizes());
    REQUIRE(got[i].scalar_type() == expected[i].scalar_type());
    CHECK(at::equal(got[i], again[i]));
    if (expected[i].numel() > 0) {
      const double size = std::max(1.0, expected[i].to(at::kDouble).abs().max().item<double>());
      CHECK(test::max_abs_diff(got[i].cpu(), expected[i]) <= size * bound);
    }
  }
}

template <class Call>
void check_equal(const char* what, at::ScalarType dtype, const Tensors& operands, Call call) {
  check_within(tolerance(dtype), what, dtype, operands, call);
}

TEST_CASE("a program with the CUDA objects has a CUDA implementation of every operator") {
  // CUDA's logits have the dtype of the hidden states (head_logits.h).
  const std::string not_on_cuda = "ringside::wide_logits";
  int64_t ours = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.starts_with("ringside::") && name.name != not_on_cuda) {
      ++ours;
      INFO(name.name);
      CHECK(c10::Dispatcher::singleton()
                .findSchemaOrThrow(name.name.c_str(), "")
                .hasKernelForDispatchKey(c10::DispatchKey::CUDA));
    }
  }
  CHECK(ours > 0);
}

TEST_CASE("CUDA norms equal the CPU's", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  at::manual_seed(1);
  for (const auto dtype : kDtypes) {
    for (const auto& [num_rows, size] :
         {std::pair{1, 8}, {700, 1024}, {3, 4100}, {5, 13}, {0, 16}}) {
      const auto random = [&] { return at::randn({num_rows, size}).to(dtype); };
      const at::Tensor weight = at::randn({size}).to(dtype);
      for (const auto& [in_fp32, plus_one] :
           {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
        CAPTURE(in_fp32, plus_one);
        // Norms of fp64 rows that are evaluated in fp32 are as exact as fp32.
        const double bound = std::max(tolerance(dtype), in_fp32 ? tolerance(at::kFloat) : 0.0);
        check_within(bound, "rms_norm", dtype, {random(), weight},
                     [in_fp32 = in_fp32, plus_one = plus_one](const Tensors& t) {
                       const auto [y, rstd] =
                           operators::rms_norm(t[0], t[1], 1e-6, in_fp32, plus_one);
                       return Tensors{y, rstd};
                     });
        for (const bool beside : {false, true}) {
          check_within(bound, "add_rms_norm and its backward", dtype,
                       {random(), random(), weight, random()},
                       [in_fp32 = in_fp32, plus_one = plus_one, beside](const Tensors& t) {
                         const auto [sum, y, rstd] =
                             operators::add_rms_norm(t[0], t[1], t[2], 1e-6, in_fp32, plus_one);
                         const auto [dx, d_weight] = operators::rms_norm_backward(
                             t[3], sum, t[2], rstd,
                             beside ? std::make_optional(t[1]) : std::nullopt, plus_one);
                         return Tensors{sum, y, rstd, dx, d_weight};
                       });
        }
      }
    }
  }
}

TEST_CASE("CUDA norm and rotation of heads equal the CPU's", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  at::manual_seed(2);
  for (const auto dtype : kDtypes) {
    for (const auto& [s, h, k, v, d] :
         {std::tuple{300, 16, 8, 8, 128}, {5, 3, 1, 1, 64}, {4, 1, 1, 0, 6}, {0, 4, 2, 2, 64}}) {
      const auto random = [dtype](at::IntArrayRef shape) { return at::randn(shape).to(dtype); };
      // The heads are part of a wider tensor.
      const Tensors operands{random({s, h + k + v + 1, d}).narrow(1, 0, h + k + v),
                             random({s, 1, d / 2}),
                             random({s, 1, d / 2}),
                             random({d}),
                             random({d}),
                             random({s, h + k, d}),
                             random({s, v, d})};
      for (const auto& [normed, plus_one] :
           {std::pair{false, false}, {true, false}, {true, true}}) {
        check_equal("qk_norm_rope and its backward", dtype, operands,
                    [normed = normed, plus_one = plus_one, h = h, k = k](const Tensors& t) {
                      const auto some = [normed](const at::Tensor& norm) {
                        return normed ? std::make_optional(norm) : std::nullopt;
                      };
                      const auto [qk, rstd] = operators::qk_norm_rope(
                          t[0], h, k, some(t[3]), some(t[4]), t[1], t[2], 1e-6, false, plus_one);
                      const auto [d_heads, d_norms] = operators::qk_norm_rope_backward(
                          t[5].narrow(1, 0, h), t[5].narrow(1, h, k), t[6], t[0], some(t[3]),
                          some(t[4]), rstd, t[1], t[2], plus_one);
                      return Tensors{qk, rstd, d_heads, d_norms};
                    });
      }
    }
  }
}

TEST_CASE("CUDA gated activations equal the CPU's", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  at::manual_seed(3);
  for (const auto dtype : kDtypes) {
    for (const auto& [s, f] : {std::pair{300, 3072}, {3, 7}, {0, 16}}) {
      const Tensors operands{at::randn({s, 2 * f}).to(dtype), at::randn({s, f}).to(dtype)};
      check_equal("swiglu and its backward", dtype, operands, [](const Tensors& t) {
        return Tensors{operators::swiglu(t[0]), operators::swiglu_backward(t[1], t[0])};
      });
      check_equal("geglu and its backward", dtype, operands, [](const Tensors& t) {
        return Tensors{operators::geglu(t[0]), operators::geglu_backward(t[1], t[0])};
      });
      check_equal("clamped_swiglu and its backward", dtype, operands, [](const Tensors& t) {
        return Tensors{operators::clamped_swiglu(t[0], 1.25, 1.5),
                       operators::clamped_swiglu_backward(t[1], t[0], 1.25, 1.5)};
      });
    }
  }
}

TEST_CASE("CUDA token scores equal the CPU's", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  at::manual_seed(4);
  for (const auto dtype : kDtypes) {
    for (const auto& [num_rows, vocab] : {std::pair{64, 151936}, {7, 777}, {2, 3}, {0, 5}}) {
      const auto acc = dtype == at::kDouble ? at::kDouble : at::kFloat;
      const auto numbers = [num_rows = num_rows, acc] { return at::randn({num_rows}).to(acc); };
      const at::Tensor logits = (at::randn({num_rows, vocab}) * 5).to(dtype);
      const Tensors operands{at::randint(vocab, {num_rows}, at::kLong),
                             numbers().abs() + 0.5,
                             numbers(),
                             numbers(),
                             numbers(),
                             numbers(),
                             numbers()};
      // exp(x) is off by as many ulps as x has.
      const double largest =
          num_rows == 0 ? 0.0
                        : logits.abs().max().item<double>() * operands[1].max().item<double>();
      const double ulps = 4 * largest * (acc == at::kDouble ? 0x1p-52 : 0x1p-23);
      for (const bool entropy : {false, true}) {
        // The logits go in as a copy: the forward may overwrite them.
        check_within(std::max(tolerance(dtype), ulps), "token_scores and its backward", dtype,
                     operands, [&logits, entropy](const Tensors& t) {
                       const at::Tensor forward = logits.clone().to(t[0].device());
                       const at::Tensor d_logits = logits.clone().to(t[0].device());
                       operators::token_scores(forward, t[0], t[1], t[2], t[3], t[4]);
                       operators::token_scores_backward(
                           d_logits, t[0], t[1], t[4], t[3], t[5],
                           entropy ? std::make_optional(t[6]) : std::nullopt);
                       return Tensors{d_logits};
                     });
      }
    }
  }
}

TEST_CASE("CUDA adds a product of bf16 to an fp32 sum without rounding it", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  at::manual_seed(5);
  for (const auto dtype : kDtypes) {
    const auto acc = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const Tensors operands{at::randn({33, 65}).to(acc), at::randn({128, 33}).to(dtype),
                           at::randn({128, 65}).to(dtype)};
    check_equal("add_transposed_mm", dtype, operands, [](const Tensors& t) {
      operators::add_transposed_mm(t[0], t[1], t[2]);
      return Tensors{};
    });
  }
}

TEST_CASE("CUDA operators refuse tensors of two devices", "[gpu]") {
  if (no_gpu()) {
    return;
  }
  const at::Tensor x = at::ones({2, 8}, at::kCUDA), w = at::ones({8});
  CHECK_THROWS_AS(operators::rms_norm(x, w, 1e-6, false, false), c10::Error);
  CHECK_THROWS_AS(operators::swiglu_backward(w.view({1, 8}), x), c10::Error);
}

}  // namespace
}  // namespace ringside::engine
