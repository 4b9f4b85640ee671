// Which kernels compute the products of layers on the CPU. A value that all ranks of a run share,
// because the kernels' sums are rounded in different orders.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ringside::engine {

enum class ProductKernel : uint8_t {
  kLibTorch,    // LibTorch's own: MKL in fp32 and fp64, oneDNN's matmul in bf16
  kPanels,      // oneDNN's BRGEMM over matrices that are packed first (engine/ops/panels.h)
  kWidePanels,  // the same in fp32, which factors in bf16 are widened to while they are packed
};

// The kernels of products with a weight, by what is multiplied. Plain data.
struct ProductKernels {
  ProductKernel forward = ProductKernel::kLibTorch;   // x W^T
  ProductKernel backward = ProductKernel::kLibTorch;  // dy W
  ProductKernel gradient = ProductKernel::kLibTorch;  // dy^T x
  // With fewer rows LibTorch multiplies: packing a weight does not pay then.
  int64_t least_rows = 1;

  ProductKernels() = default;
  // One kernel for all, with any number of rows.
  ProductKernels(ProductKernel all)  // NOLINT(google-explicit-constructor)
      : forward(all), backward(all), gradient(all) {}
  // As one number, for autograd to keep, and back.
  int64_t code() const {
    return static_cast<int64_t>(forward) | static_cast<int64_t>(backward) << 4 |
           static_cast<int64_t>(gradient) << 8 | least_rows << 12;
  }
  static ProductKernels of_code(int64_t code) {
    ProductKernels kernels;
    kernels.forward = static_cast<ProductKernel>(code & 15);
    kernels.backward = static_cast<ProductKernel>(code >> 4 & 15);
    kernels.gradient = static_cast<ProductKernel>(code >> 8 & 15);
    kernels.least_rows = code >> 12;
    return kernels;
  }
  bool operator==(const ProductKernels&) const = default;
};

// Plain data. The default depends on nothing but the program.
struct ProductPlan {
  // Of products whose factors have this dtype and whose weight is not packed already. fp64 is
  // always LibTorch's.
  ProductKernels fp32 = {};
  ProductKernels bf16 = {};
  // Whether attention multiplies bf16 as it is, and not widened to fp32.
  bool bf16_attention = false;
  // Whether weights for sampling are packed when they are taken, once for all tokens.
  bool packs_for_sampling = true;

  // The kernels for factors of this dtype. Thread safety: const.
  ProductKernels of(at::ScalarType dtype) const {
    return dtype == at::kFloat      ? fp32
           : dtype == at::kBFloat16 ? bf16
                                    : ProductKernels(ProductKernel::kLibTorch);
  }
  bool operator==(const ProductPlan&) const = default;
};

// The plan as one word, e.g. "fp32=libtorch/libtorch/libtorch@1;bf16=wide/wide/panels@64;
// attention=fp32": of each dtype the kernels of x W^T, dy W and dy^T x and the least rows, and what
// attention multiplies bf16 in.
// Thread safety: pure; so is parse_product_plan().
std::string text_of(const ProductPlan& plan);

// The plan of such a word; nothing for any other text. packs_for_sampling is the default.
std::optional<ProductPlan> parse_product_plan(std::string_view text);

}  // namespace ringside::engine
