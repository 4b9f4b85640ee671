#include "engine/io/mxfp4_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <stdexcept>

namespace ringside::engine {
namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";
constexpr int64_t kBlock = 32, kBlockBytes = kBlock / 2;
constexpr int64_t kExponentOfOne = 127;

// Of the codes 0 to 15: sign, two bits of exponent, one of mantissa.
constexpr std::array<float, 16> kValues = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                           -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

// One expert: blocks [O, G, 16], scales [O, G] to [32 G, O] in fp32.
at::Tensor unpack_expert(const at::Tensor& blocks, const at::Tensor& scales) {
  const at::Tensor values = at::tensor(at::ArrayRef<float>(kValues.data(), kValues.size()));
  const at::Tensor low = blocks.bitwise_and(15).to(at::kInt);
  const at::Tensor high = blocks.bitwise_right_shift(4).to(at::kInt);
  const at::Tensor codes = at::stack({low, high}, -1);  // [O, G, 16, 2]
  const at::Tensor mantissas = values.index_select(0, codes.flatten()).view({-1, kBlock});
  const at::Tensor exponents = scales.to(at::kInt).sub(kExponentOfOne).view({-1, 1});
  return at::ldexp(mantissas, exponents).view({blocks.size(0), -1}).t().contiguous();
}

}  // namespace

std::string mxfp4_owner(std::string_view name) {
  return name.ends_with(kBlocks) ? std::string(name.substr(0, name.size() - kBlocks.size())) : "";
}

std::string mxfp4_scales_name(const std::string& name) { return name + std::string(kScales); }

std::vector<int64_t> mxfp4_shape(const SafetensorsEntry& blocks, const SafetensorsEntry& scales) {
  const auto refuse = [](const SafetensorsEntry& entry, const std::string& expected) {
    throw std::runtime_error("tensor '" + entry.name + "' has shape " +
                             c10::str(at::IntArrayRef(entry.shape)) + " and dtype " +
                             c10::toString(entry.dtype) + ", expected " + expected);
  };
  if (blocks.shape.size() != 4 || blocks.shape.back() != kBlockBytes || blocks.dtype != at::kByte) {
    refuse(blocks, "Byte of [experts, outputs, blocks, 16]");
  }
  const std::vector<int64_t> of_scales(blocks.shape.begin(), blocks.shape.end() - 1);
  if (scales.shape != of_scales || scales.dtype != at::kByte) {
    refuse(scales, "Byte of " + c10::str(at::IntArrayRef(of_scales)) + ", one for each block");
  }
  return {blocks.shape[0], blocks.shape[2] * kBlock, blocks.shape[1]};
}

at::Tensor unpack_mxfp4(const at::Tensor& blocks, const at::Tensor& scales, int64_t begin,
                        int64_t end) {
  const at::Tensor result = at::empty({end - begin}, at::kFloat);
  const int64_t each = blocks.size(0) == 0 ? 0 : 2 * blocks.numel() / blocks.size(0);
  for (int64_t at_element = begin; at_element < end;) {
    const int64_t expert = at_element / each, first = at_element - expert * each;
    const int64_t count = std::min(each - first, end - at_element);
    result.narrow(0, at_element - begin, count)
        .copy_(unpack_expert(blocks[expert], scales[expert]).view({-1}).narrow(0, first, count));
    at_element += count;
  }
  return result;
}

}  // namespace ringside::engine
