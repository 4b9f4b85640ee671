#include "engine/device/product_plan.h"

#include <array>
#include <regex>

namespace ringside::engine {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"libtorch", "panels", "wide"};

std::string text_of(const ProductKernels& kernels) {
  const auto name = [](ProductKernel kernel) {
    return std::string(kNames.at(static_cast<std::size_t>(kernel)));
  };
  return name(kernels.forward) + "/" + name(kernels.backward) + "/" + name(kernels.gradient) + "@" +
         std::to_string(kernels.least_rows);
}

ProductKernel kernel_of(const std::string& name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) {
      return static_cast<ProductKernel>(i);
    }
  }
  return ProductKernel::kLibTorch;  // the expression below lets nothing else through
}

ProductKernels kernels_of(const std::smatch& match, std::size_t first) {
  ProductKernels kernels;
  kernels.forward = kernel_of(match[first]);
  kernels.backward = kernel_of(match[first + 1]);
  kernels.gradient = kernel_of(match[first + 2]);
  kernels.least_rows = std::stoll(match[first + 3]);
  return kernels;
}

}  // namespace

std::string text_of(const ProductPlan& plan) {
  return "fp32=" + text_of(plan.fp32) + ";bf16=" + text_of(plan.bf16) +
         ";attention=" + (plan.bf16_attention ? "bf16" : "fp32");
}

std::optional<ProductPlan> parse_product_plan(std::string_view text) {
  static const std::string kernel = "(libtorch|panels|wide)";
  static const std::string kernels = kernel + "/" + kernel + "/" + kernel + "@([1-9][0-9]{0,8})";
  static const std::regex form("fp32=" + kernels + ";bf16=" + kernels + ";attention=(bf16|fp32)");
  const std::string copy(text);
  std::smatch match;
  if (!std::regex_match(copy, match, form)) {
    return std::nullopt;
  }
  ProductPlan plan;
  plan.fp32 = kernels_of(match, 1);
  plan.bf16 = kernels_of(match, 5);
  plan.bf16_attention = match[9] == "bf16";
  return plan;
}

}  // namespace ringside::engine
