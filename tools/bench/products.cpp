// Rates of matrix products by kernel, GFLOP/s, at the shapes of SmolLM2-135M and of the 5.8M model
// of the quickstart. Prints one line of JSON for each dtype, product and shape: "libtorch" is
// at::mm (MKL in fp32, oneDNN's matmul in bf16; for weight gradients of bf16 fp32 copies), "panels"
// packs the weight for each product, "wide" packs it in fp32, "packed" has it packed before.
//
// Usage: bench_products [threads] [shortest milliseconds of a measurement]
// MKL_ENABLE_INSTRUCTIONS=AVX2 imitates what MKL does on processors of other makers.
#include "engine/ops/products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using namespace ringside::engine;

constexpr int kRounds = 5;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Alternates between the ways, so that what else runs on the machine meets all of them alike.
template <class... Ways>
std::vector<double> medians(double shortest, const Ways&... ways) {
  std::vector<std::vector<double>> times(sizeof...(Ways));
  for (int round = 0; round < kRounds; ++round) {
    std::size_t i = 0;
    const auto measure = [&](const auto& way) {
      way();
      int64_t calls = 0;
      const double start = seconds_now();
      double took = 0.0;
      do {
        way();
        ++calls;
        took = seconds_now() - start;
      } while (took < shortest);
      times[i++].push_back(took / static_cast<double>(calls));
    };
    (measure(ways), ...);
  }
  std::vector<double> result;
  for (std::vector<double>& of_way : times) {
    std::ranges::sort(of_way);
    result.push_back(of_way[kRounds / 2]);
  }
  return result;
}

void measure(at::ScalarType dtype, int64_t rows, int64_t outputs, int64_t inputs, double shortest) {
  const at::Tensor x = at::randn({rows, inputs}).to(dtype),
                   dy = at::randn({rows, outputs}).to(dtype);
  const at::Tensor w = at::randn({outputs, inputs}).to(dtype), sum = at::zeros({outputs, inputs});
  const double flops = 2e-9 * static_cast<double>(rows) * static_cast<double>(outputs * inputs);
  const char* const name = dtype == at::kFloat ? "fp32" : "bf16";
  const auto print = [&](const char* product, const std::vector<double>& seconds) {
    std::printf(
        "{\"dtype\": \"%s\", \"product\": \"%s\", \"rows\": %ld, \"outputs\": %ld, \"inputs\": "
        "%ld, \"libtorch\": %.0f, \"panels\": %.0f, \"wide\": %.0f",
        name, product, rows, outputs, inputs, flops / seconds[0], flops / seconds[1],
        flops / seconds[2]);
    if (seconds.size() > 3) {
      std::printf(", \"packed\": %.0f", flops / seconds[3]);
    }
    std::printf("}\n");
    std::fflush(stdout);
  };
  const auto by = [&](ProductKernel kernel) {
    return [&, kernel] { product_with_rows(x, w, {}, kernel); };
  };
  const Panels panels = Panels::of_rows(w);
  print("x W^T", medians(shortest, by(ProductKernel::kLibTorch), by(ProductKernel::kPanels),
                         by(ProductKernel::kWidePanels),
                         [&] { product_with_rows(x, w, {}, ProductKernel::kLibTorch, &panels); }));
  if (rows < 256) {
    return;
  }
  print("dy W", medians(
                    shortest, [&] { at::mm(dy, w); },
                    [&] { product_with_columns(dy, w, ProductKernel::kPanels); },
                    [&] { product_with_columns(dy, w, ProductKernel::kWidePanels); }));
  at::Tensor target = sum;
  print("dy^T x", medians(
                      shortest, [&] { target.addmm_(dy.t().to(at::kFloat), x.to(at::kFloat)); },
                      [&] { add_transposed_by_panels(sum, dy, x); },
                      [&] { add_transposed_by_panels(sum, dy, x, ProductKernel::kWidePanels); }));
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 1);
  const double shortest = (argc > 2 ? std::atof(argv[2]) : 20.0) / 1000.0;
  struct Shape {
    int64_t outputs, inputs;
  };
  // q, k and v, gate and up, down and the head of SmolLM2-135M; the same of the 5.8M model.
  const Shape shapes[] = {{960, 576}, {3072, 576}, {576, 1536}, {49152, 576},
                          {512, 256}, {1536, 256}, {256, 768},  {4096, 256}};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [outputs, inputs] : shapes) {
      for (const int64_t rows : {1, 4, 16, 64, 256, 2048}) {
        if (Panels::can_hold(dtype, inputs) && rows * outputs < (int64_t{1} << 24)) {
          measure(dtype, rows, outputs, inputs, shortest);
        }
      }
    }
  }
  return 0;
}
