// Guards products of layers: every kernel against fp64, at odd sizes, strides and without rows;
// bits that depend on nothing but the row; gradients of bf16 layers that no fp32 copy takes part
// in.
#include "engine/ops/products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <pthread.h>

#include <functional>
#include <vector>

#include "engine/nn/grouped_linear.h"
#include "engine/nn/linear.h"
#include "engine/ops/add_transposed_mm.h"
#include "engine/ops/head_logits.h"
#include "engine/ops/transpose.h"
#include "tests/support/catch.h"

namespace ringside::engine {
namespace {

constexpr ProductKernel kKernels[] = {ProductKernel::kLibTorch, ProductKernel::kPanels,
                                      ProductKernel::kWidePanels};

at::Tensor random(std::vector<int64_t> shape, at::ScalarType dtype) {
  return at::randn(shape, at::kDouble).to(dtype);
}

at::Tensor exact(const at::Tensor& x) { return x.detach().to(at::kDouble); }

// Largest difference from `expected` (fp64), as a share of what rounding of a sum of `terms` terms
// and of its result in y's dtype may leave of it.
double error_share(const at::Tensor& y, const at::Tensor& expected, int64_t terms) {
  if (y.numel() == 0) {
    return 0.0;
  }
  const double result = y.scalar_type() == at::kBFloat16 ? 0x1p-8 : 0x1p-23;
  const at::Tensor allowed = expected.abs() * result + 0x1p-22 * static_cast<double>(terms) + 1e-30;
  return ((exact(y) - expected).abs() / allowed).max().item<double>();
}

// The matrix as columns 3 to 3 + its own of a wider one.
at::Tensor strided(const at::Tensor& matrix) {
  const at::Tensor wide = at::zeros({matrix.size(0), matrix.size(1) + 7}, matrix.options());
  wide.narrow(1, 3, matrix.size(1)).copy_(matrix);
  return wide.narrow(1, 3, matrix.size(1));
}

struct Sizes {
  int64_t rows, inputs, outputs;
};
const Sizes kSizes[] = {{0, 8, 40},      {1, 576, 70},   {3, 6, 33},    {5, 2, 64},
                        {17, 34, 129},   {40, 130, 65},  {63, 64, 192}, {64, 66, 32},
                        {100, 2050, 36}, {131, 4100, 50}};

TEST_CASE("products of both kernels agree with fp64 in fp32 and bf16, whatever size and strides") {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Sizes& n : kSizes) {
      for (const bool has_strides : {false, true}) {
        const auto laid = [&](const at::Tensor& t) { return has_strides ? strided(t) : t; };
        const at::Tensor x = laid(random({n.rows, n.inputs}, dtype));
        const at::Tensor w = laid(random({n.outputs, n.inputs}, dtype));
        const at::Tensor dy = laid(random({n.rows, n.outputs}, dtype));
        const at::Tensor b = random({n.outputs}, dtype);
        const at::Tensor y = exact(x).mm(exact(w).t()), dx = exact(dy).mm(exact(w));
        const at::Tensor dw = exact(dy).t().mm(exact(x));
        for (const ProductKernel kernel : kKernels) {
          CAPTURE(dtype, n.rows, n.inputs, n.outputs, has_strides, static_cast<int>(kernel));
          CHECK(error_share(product_with_rows(x, w, {}, kernel), y, n.inputs) < 1);
          CHECK(error_share(product_with_rows(x, w, b, kernel), y + exact(b), n.inputs) < 1);
          CHECK(error_share(product_with_columns(dy, w, kernel), dx, n.outputs) < 1);
          const at::Tensor sum = at::ones({n.outputs, n.inputs});
          add_gradient_product(sum, dy, x, kernel);
          CHECK(error_share(sum, dw + 1, n.rows + 1) < 1);
        }
        if (Panels::can_hold(dtype, n.inputs)) {
          const Panels panels = Panels::of_rows(w);
          CHECK(panels.bytes() == Panels::bytes(n.outputs, n.inputs, dtype));
          CHECK(at::equal(Panels::of_columns(w.t().contiguous()).packed(), panels.packed()));
          CHECK(error_share(product_with_rows(x, w, b, ProductKernel::kLibTorch, &panels),
                            y + exact(b), n.inputs) < 1);
          CHECK(error_share(wide_product_with_rows(x, w), y, n.inputs) < 1);
          CHECK(error_share(wide_product_with_rows(x, w, &panels), y, n.inputs) < 1);
          const Panels wide = Panels::of_rows(w, at::kFloat);
          CHECK(at::equal(Panels::of_rows(w.to(at::kFloat)).packed(), wide.packed()));
          CHECK(at::equal(Panels::of_columns(w.t(), at::kFloat).packed(), wide.packed()));
        }
      }
    }
  }
}

TEST_CASE("products in fp64 have at::mm's bits with every kernel, and so has fp16") {
  for (const at::ScalarType dtype : {at::kDouble, at::kHalf}) {
    const at::Tensor x = random({70, 36}, dtype), w = random({65, 36}, dtype);
    for (const ProductKernel kernel : kKernels) {
      CHECK(at::equal(product_with_rows(x, w, {}, kernel), at::mm(x, w.t())));
      CHECK(at::equal(product_with_columns(x, w.t(), kernel), at::mm(x, w.t())));
    }
    CHECK_FALSE(Panels::can_hold(dtype, 36));
  }
}

TEST_CASE("a row of a product has the same bits in every batch and with any number of threads") {
  at::manual_seed(2);
  const int threads = at::get_num_threads();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    if (!Panels::can_hold(dtype, 96)) {
      WARN("no kernel for " << dtype << " here");
      continue;
    }
    for (const at::ScalarType panels_in : {dtype, at::kFloat}) {
      const Panels panels = Panels::of_rows(random({200, 96}, dtype), panels_in);
      const at::Tensor x = random({150, 96}, dtype), all = at::empty({150, 200});
      multiply(x, panels, all);
      for (int64_t rows = 1; rows <= 150; ++rows) {
        const at::Tensor some = at::empty({rows, 200});
        multiply(x.narrow(0, 150 - rows, rows), panels, some);
        CAPTURE(dtype, panels_in, rows);
        CHECK(at::equal(some, all.narrow(0, 150 - rows, rows)));
      }
      at::set_num_threads(3);
      const at::Tensor by_three = at::empty({150, 200});
      multiply(x, panels, by_three);
      at::set_num_threads(threads);
      CHECK(at::equal(by_three, all));
    }
  }
}

TEST_CASE("the weight's gradient of bf16 factors is that of exact products, odd tokens included") {
  at::manual_seed(3);
  for (const int64_t tokens : {1, 2, 77, 1500}) {
    const at::Tensor a = random({tokens, 70}, at::kBFloat16);
    const at::Tensor b = random({tokens, 40}, at::kBFloat16);
    const at::Tensor expected = exact(a).t().mm(exact(b));
    const at::Tensor sum = at::zeros({70, 40});
    operators::add_transposed_mm(sum, a, b);
    CAPTURE(tokens);
    CHECK(error_share(sum, expected, tokens) < 1);
    for (const ProductKernel kernel : {ProductKernel::kPanels, ProductKernel::kWidePanels}) {
      const at::Tensor by_panels = at::zeros({70, 40});
      if (add_transposed_by_panels(by_panels, a, b, kernel)) {
        CHECK(error_share(by_panels, expected, tokens) < 1);
      }
    }
    // A factor that was not rounded stays so: what two bf16 parts leave out is 2^-17 of it.
    const at::Tensor wide = at::randn({tokens, 70}), of_wide = at::zeros({70, 40});
    if (!add_transposed_by_panels(of_wide, wide, b)) {
      operators::add_transposed_mm(of_wide, wide, b);
    }
    const at::Tensor bound = exact(wide).abs().t().mm(exact(b).abs()) * 0x1p-16 + 1e-6;
    CHECK(((exact(of_wide) - exact(wide).t().mm(exact(b))).abs() / bound).max().item<double>() < 1);
  }
}

TEST_CASE("logits of bf16 states are not rounded, with a packed head and without") {
  at::manual_seed(4);
  const at::Tensor hidden = random({9, 128}, at::kBFloat16);
  Weight head(random({5000, 128}, at::kBFloat16));
  if (Panels::can_hold(at::kBFloat16, 128)) {
    const at::Tensor before = head_logits(hidden, head);
    CHECK(error_share(before, exact(hidden).mm(exact(head.value).t()), 128) < 1);
    head.panels = std::make_shared<const Panels>(Panels::of_rows(head.value));
    CHECK(at::equal(head_logits(hidden, head), before));
    head.panels = nullptr;
    head.kernel = ProductKernel::kWidePanels;
    CHECK(error_share(head_logits(hidden, head), exact(hidden).mm(exact(head.value).t()), 128) < 1);
  }
}

TEST_CASE("below the least number of rows LibTorch multiplies") {
  at::manual_seed(6);
  ProductKernels kernels = ProductKernel::kPanels;
  kernels.least_rows = 64;
  CHECK(ProductKernels::of_code(kernels.code()) == kernels);
  const at::Tensor x = random({64, 96}, at::kFloat), w = random({128, 96}, at::kFloat);
  const at::Tensor few = x.narrow(0, 0, 63);
  CHECK(at::equal(product_with_rows(few, w, {}, kernels), at::mm(few, w.t())));
  CHECK(at::equal(product_with_rows(x, w, {}, kernels),
                  product_with_rows(x, w, {}, ProductKernel::kPanels)));
}

TEST_CASE("layers and experts follow the kernel of their weight, forward and backward") {
  at::manual_seed(5);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor master = at::randn({3, 66, 34}).requires_grad_();
    const at::Tensor x = random({90, 34}, dtype).requires_grad_();
    const at::Tensor dy = random({90, 66}, dtype);
    for (const ProductKernel kernel : kKernels) {
      CAPTURE(dtype, static_cast<int>(kernel));
      Weight experts(master.detach().to(dtype), master);
      experts.kernel = kernel;
      const std::vector<int64_t> counts{50, 0, 40};
      const at::Tensor y = apply_grouped_linear(x, experts, counts);
      y.backward(dy);
      const at::Tensor w = exact(experts.value);
      CHECK(error_share(y.narrow(0, 50, 40), exact(x).narrow(0, 50, 40).mm(w[2].t()), 34) < 1);
      CHECK(error_share(x.grad().narrow(0, 0, 50), exact(dy).narrow(0, 0, 50).mm(w[0]), 66) < 1);
      CHECK(error_share(master.grad()[0],
                        exact(dy).narrow(0, 0, 50).t().mm(exact(x).narrow(0, 0, 50)), 50) < 1);
      CHECK(master.grad()[1].abs().max().item<float>() == 0);
      master.mutable_grad().reset();
      x.mutable_grad().reset();
      Weight one(experts.value[0], master.select(0, 0));
      one.kernel = kernel;
      apply_linear(x, one).backward(dy);
      CHECK(error_share(x.grad(), exact(dy).mm(w[0]), 66) < 1);
      CHECK(error_share(master.grad()[0], exact(dy).t().mm(exact(x)), 90) < 1);
      master.mutable_grad().reset();
      x.mutable_grad().reset();
    }
  }
}

// Runs a function in a thread with the stack that a library's worker may have.
void in_small_thread(const std::function<void()>& work) {
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, 256 << 10) == 0);
  pthread_t thread{};
  const auto run = [](void* function) -> void* {
    (*static_cast<const std::function<void()>*>(function))();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, run,
                         const_cast<std::function<void()>*>(&work)) == 0);  // NOLINT
  REQUIRE(pthread_join(thread, nullptr) == 0);
}

TEST_CASE("a thread with a stack of 256 KiB generates the kernels and computes with them") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = random({77, 258}, dtype), w = random({130, 258}, dtype);
    at::Tensor y;
    in_small_thread([&] {
      const at::Tensor sum = at::zeros({130, 258});
      add_gradient_product(sum, random({77, 130}, dtype), x, ProductKernel::kPanels);
      y = product_with_rows(x, w, {}, ProductKernel::kPanels);
    });
    CHECK(error_share(y, exact(x).mm(exact(w).t()), 258) < 1);
  }
}

TEST_CASE("transposed copies and panels refuse what they cannot hold") {
  const at::Tensor odd = at::ones({3, 4}, at::kBFloat16), even = at::ones({4, 5}, at::kBFloat16);
  CHECK_THROWS_WITH(transposed_copy(odd), Catch::Contains("an even number of rows"));
  CHECK(at::equal(transposed_copy(even), even.t()));
  CHECK_THROWS_WITH(Panels::of_rows(at::ones({3, 4}, at::kDouble)), Catch::Contains("no kernel"));
  CHECK_THROWS_WITH(Panels::of_rows(at::ones({3})), Catch::Contains("expected a matrix"));
  if (Panels::can_hold(at::kFloat, 4)) {
    const Panels panels = Panels::of_rows(at::ones({3, 4}));
    CHECK_THROWS_WITH(multiply(at::ones({2, 5}), panels, at::ones({2, 3})),
                      Catch::Contains("do not fit a packed matrix [3, 4]"));
    CHECK_THROWS_WITH(multiply(at::ones({2, 4}), panels, at::ones({3, 2}).t()),
                      Catch::Contains("do not fit"));
    CHECK_THROWS_WITH(multiply(at::ones({4, 4}, at::kDouble), panels, at::ones({4, 3})),
                      Catch::Contains("x is"));
    CHECK_THROWS_WITH(
        multiply(at::ones({2, 4}), panels, at::ones({2, 3}), Store::kSet, at::ones({4})),
        Catch::Contains("bias"));
  }
}

}  // namespace
}  // namespace ringside::engine
