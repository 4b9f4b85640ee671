#include "engine/runner/product_measurement.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <limits>

#include "engine/ops/products.h"
#include "sp/attention/bf16_tiles.h"
#include "sp/attention/block_attention.h"

namespace ringside::engine {
namespace {

constexpr int64_t kRows = 256, kOutputs = 512, kInputs = 512;
constexpr int kRounds = 8;
constexpr double kWorthIt = 0.95;  // of LibTorch's time
constexpr std::array<int64_t, 2> kFewRows = {16, 64};

using Way = std::function<void()>;

// One thread while it lives: two would wait for each other where other work runs.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// Seconds of each way: the least of some rounds in which the ways take turns, after one to warm up.
std::vector<double> times_of(const std::vector<Way>& ways) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> best(ways.size(), std::numeric_limits<double>::max());
  for (int round = 0; round <= kRounds; ++round) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const auto start = Clock::now();
      ways[i]();
      const double took = std::chrono::duration<double>(Clock::now() - start).count();
      if (round > 0) {
        best[i] = std::min(best[i], took);
      }
    }
  }
  return best;
}

struct Factors {
  at::Tensor x, dy, w, sum;
};

using Product = void (*)(const Factors&, ProductKernels);

struct NamedProduct {
  const char* name;
  Product multiply;
  ProductKernel ProductKernels::*member;
};

const std::array<NamedProduct, 3> kProducts = {{
    {"x W^T", [](const Factors& f, ProductKernels k) { product_with_rows(f.x, f.w, {}, k); },
     &ProductKernels::forward},
    {"dy W", [](const Factors& f, ProductKernels k) { product_with_columns(f.dy, f.w, k); },
     &ProductKernels::backward},
    {"dy^T x",
     [](const Factors& f, ProductKernels k) { add_gradient_product(f.sum, f.dy, f.x, k); },
     &ProductKernels::gradient},
}};

Factors factors(at::ScalarType dtype, int64_t rows) {
  // Not drawn: a run's random numbers must not depend on whether it measured.
  const auto some = [&](int64_t r, int64_t c) {
    return at::linspace(-1, 1, r * c).view({r, c}).to(dtype);
  };
  return {some(rows, kInputs), some(rows, kOutputs), some(kOutputs, kInputs),
          at::zeros({kOutputs, kInputs})};
}

// The kernels that this processor has for the dtype, LibTorch's first.
std::vector<ProductKernel> kernels_for(at::ScalarType dtype) {
  std::vector<ProductKernel> kernels{ProductKernel::kLibTorch};
  if (Panels::can_hold(dtype, kInputs)) {
    kernels.push_back(ProductKernel::kPanels);
  }
  if (dtype == at::kBFloat16 && Panels::can_hold(at::kFloat, kInputs)) {
    kernels.push_back(ProductKernel::kWidePanels);
  }
  return kernels;
}

// The fewest rows from which on the chosen kernels are not slower than LibTorch's.
int64_t least_rows(at::ScalarType dtype, const ProductKernels& chosen) {
  int64_t least = kRows;
  for (auto rows = kFewRows.rbegin(); rows != kFewRows.rend(); ++rows) {
    const Factors few = factors(dtype, *rows);
    const auto all = [&](const ProductKernels& kernels) {
      for (const NamedProduct& product : kProducts) {
        product.multiply(few, kernels);
      }
    };
    const std::vector<double> times = times_of({[&] { all({}); }, [&] { all(chosen); }});
    if (times[1] > times[0]) {
      break;
    }
    least = *rows;
  }
  return least;
}

ProductKernels measure_kernels(at::ScalarType dtype, std::vector<ProductRate>& rates) {
  const std::vector<ProductKernel> kernels = kernels_for(dtype);
  const Factors many = factors(dtype, kRows);
  const double gflop = 2e-9 * static_cast<double>(kRows * kOutputs * kInputs);
  ProductKernels chosen;
  for (const NamedProduct& product : kProducts) {
    std::vector<Way> ways;
    for (const ProductKernel kernel : kernels) {
      ways.emplace_back([&, kernel] { product.multiply(many, kernel); });
    }
    const std::vector<double> times = times_of(ways);
    const auto best = std::min_element(times.begin(), times.end());
    if (*best < kWorthIt * times[0]) {
      chosen.*product.member = kernels[static_cast<std::size_t>(best - times.begin())];
    }
    ProductRate rate{std::string(dtype == at::kFloat ? "fp32 " : "bf16 ") + product.name};
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      (kernels[i] == ProductKernel::kLibTorch ? rate.libtorch
       : kernels[i] == ProductKernel::kPanels ? rate.panels
                                              : rate.wide) = gflop / times[i];
    }
    rates.push_back(rate);
  }
  if (chosen != ProductKernels()) {
    chosen.least_rows = least_rows(dtype, chosen);
  }
  return chosen;
}

void measure_attention(ProductMeasurement& result) {
  const auto some = [](int64_t heads) {
    return at::linspace(-1, 1, 256 * heads * 64).view({1, 256, heads, 64}).to(at::kBFloat16);
  };
  const at::Tensor q = some(6), k = some(2), v = some(2), dout = some(6);
  const auto both_passes = [&](at::ScalarType dtype) {
    const sp::BlockMask mask{sp::kEarlierKeys, {}};
    const at::Tensor qc = q.to(dtype), kc = k.to(dtype), vc = v.to(dtype), dc = dout.to(dtype);
    const auto [out, lse] = sp::block_attention(qc, kc, vc, mask, 0.125);
    sp::block_attention_backward(dc, qc, kc, vc, out.to(dtype), lse, mask, 0.125);
  };
  std::vector<Way> ways{[&] { both_passes(at::kFloat); }};
  if (sp::has_bf16_tiles(64)) {
    ways.emplace_back([&] { both_passes(at::kBFloat16); });
  }
  const std::vector<double> times = times_of(ways);
  result.attention_in_fp32 = times[0];
  result.attention_in_bf16 = times.size() > 1 ? times[1] : 0.0;
  result.plan.bf16_attention = times.size() > 1 && times[1] < kWorthIt * times[0];
}

}  // namespace

ProductMeasurement measure_products() {
  const at::NoGradGuard no_gradient;
  const OneThread one_thread;
  ProductMeasurement result;
  result.plan.fp32 = measure_kernels(at::kFloat, result.rates);
  result.plan.bf16 = measure_kernels(at::kBFloat16, result.rates);
  measure_attention(result);
  return result;
}

}  // namespace ringside::engine
