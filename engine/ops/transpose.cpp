#include "engine/ops/transpose.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "sp/lanes/words.h"

namespace ringside::engine {
namespace {

using sp::interleave;
using sp::transpose_words;

constexpr int kLanes = 16;
constexpr int64_t kStrip = 64;  // columns that one piece of work transposes

void transpose_floats(const at::Tensor& matrix, const at::Tensor& result) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  const auto* from = reinterpret_cast<const uint32_t*>(matrix.const_data_ptr<float>());
  auto* to = reinterpret_cast<uint32_t*>(result.mutable_data_ptr<float>());
  at::parallel_for(0, (columns + kStrip - 1) / kStrip, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin * kStrip; c < std::min(end * kStrip, columns); c += kStrip) {
      transpose_words({from + c, matrix.stride(0), rows, std::min(kStrip, columns - c)},
                      to + c * rows, rows);
    }
  });
}

// Pairs of rows become words first.
void transpose_pairs(const at::Tensor& matrix, const at::Tensor& result) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1), stride = matrix.stride(0);
  const auto* from = reinterpret_cast<const uint16_t*>(matrix.const_data_ptr<at::BFloat16>());
  auto* to = reinterpret_cast<uint32_t*>(result.mutable_data_ptr<at::BFloat16>());
  at::parallel_for(0, (columns + kStrip - 1) / kStrip, 1, [&](int64_t begin, int64_t end) {
    alignas(64) uint32_t words[kLanes * kStrip];
    for (int64_t c = begin * kStrip; c < std::min(end * kStrip, columns); c += kStrip) {
      const int64_t width = std::min(kStrip, columns - c);
      for (int64_t pair = 0; pair < rows / 2; pair += kLanes) {
        const int64_t pairs = std::min<int64_t>(kLanes, rows / 2 - pair);
        for (int64_t i = 0; i < pairs; ++i) {
          const uint16_t* const even = from + 2 * (pair + i) * stride + c;
          interleave(even, even + stride, width, reinterpret_cast<uint16_t*>(words + i * kStrip));
        }
        transpose_words({words, kStrip, pairs, width}, to + c * (rows / 2) + pair, rows / 2);
      }
    }
  });
}

}  // namespace

at::Tensor transposed_copy(const at::Tensor& matrix) {
  const bool pairs = matrix.scalar_type() == at::kBFloat16;
  TORCH_CHECK(matrix.dim() == 2 && (matrix.size(1) <= 1 || matrix.stride(1) == 1) &&
                  (pairs ? matrix.size(0) % 2 == 0 : matrix.scalar_type() == at::kFloat),
              "transposed copy: expected rows of fp32, or an even number of rows of bf16, got ",
              matrix.scalar_type(), " ", matrix.sizes(), " ", matrix.strides());
  at::Tensor result = at::empty({matrix.size(1), matrix.size(0)}, matrix.options());
  pairs ? transpose_pairs(matrix, result) : transpose_floats(matrix, result);
  return result;
}

}  // namespace ringside::engine
