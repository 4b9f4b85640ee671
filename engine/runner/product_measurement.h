// Which kernels multiply fastest on this processor.
#pragma once

#include <string>
#include <vector>

#include "engine/device/product_plan.h"

namespace ringside::engine {

// Rates of one product by kernel, GFLOP/s; 0 where this processor lacks the kernel.
struct ProductRate {
  std::string what;  // "bf16 x W^T"
  double libtorch = 0.0;
  double panels = 0.0;
  double wide = 0.0;
};

struct ProductMeasurement {
  ProductPlan plan;
  std::vector<ProductRate> rates;
  double attention_in_fp32 = 0.0;  // of bf16 operands, forward and backward, seconds
  double attention_in_bf16 = 0.0;  // 0: this processor lacks it
};

// Measures products of a matrix [512, 512] with 256 rows, for each dtype the fewest rows for which
// packing pays, and attention over a document of 256 tokens. A kernel is chosen that takes less
// than 0.95 of LibTorch's time. A time is the least of eight, each of a millisecond or two, so that
// other work on the machine seldom changes the result.
// Blocks: for a third of a second, on one thread. Thread safety: one call at a time, as it sets the
// number of ATen's threads.
ProductMeasurement measure_products();

}  // namespace ringside::engine
