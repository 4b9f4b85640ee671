#include "engine/io/fp8_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace ringside::engine {
namespace {

constexpr int64_t kRowsAtOnce = 256;  // bounds the memory for intermediate results

int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

[[noreturn]] void refuse(const SafetensorsEntry& entry, const std::string& expected) {
  throw std::runtime_error("tensor '" + entry.name + "' has shape " +
                           c10::str(at::IntArrayRef(entry.shape)) + " and dtype " +
                           c10::toString(entry.dtype) + ", expected " + expected);
}

// Rows [first, first + count) in fp32.
at::Tensor unpack_rows(const at::Tensor& matrix_OI, const at::Tensor& scales, ScaleBlock block,
                       int64_t first, int64_t count) {
  const at::Tensor of_rows =
      scales.index_select(0, at::arange(first, first + count).floor_divide(block.rows));
  const at::Tensor of_columns =
      of_rows.index_select(1, at::arange(matrix_OI.size(1)).floor_divide(block.columns));
  return matrix_OI.narrow(0, first, count).to(at::kFloat).mul_(of_columns);
}

}  // namespace

bool is_activation_scale(std::string_view name) {
  return std::ranges::any_of(std::array<std::string_view, 5>{".input_scale", ".output_scale",
                                                             ".q_scale", ".k_scale", ".v_scale"},
                             [&](std::string_view suffix) { return name.ends_with(suffix); });
}

ScaleBlock fp8_block(const SafetensorsEntry& matrix, const SafetensorsEntry& scales,
                     ScaleBlock block) {
  if (matrix.shape.size() != 2) {
    refuse(matrix, "a matrix: other FP8 tensors are not read");
  }
  if (!at::isFloatingType(scales.dtype) && scales.dtype != at::kFloat8_e8m0fnu) {
    refuse(scales, "a floating-point dtype");
  }
  const int64_t rows = matrix.shape[0], columns = matrix.shape[1];
  if (c10::multiply_integers(scales.shape) == 1) {
    return {std::max<int64_t>(1, rows), std::max<int64_t>(1, columns)};
  }
  using Shape = std::vector<int64_t>;
  if (scales.shape == Shape{rows} || scales.shape == Shape{rows, 1}) {
    return {1, std::max<int64_t>(1, columns)};
  }
  const std::string others = "one scale or " + std::to_string(rows);
  if (block.rows == 0) {
    refuse(scales, others + ", as quantization_config names no block");
  }
  if (const Shape blocks{blocks_of(rows, block.rows), blocks_of(columns, block.columns)};
      scales.shape != blocks) {
    refuse(scales, others + " or " + c10::str(at::IntArrayRef(blocks)) +
                       ": one for each block of " + std::to_string(block.rows) + " x " +
                       std::to_string(block.columns));
  }
  return block;
}

at::Tensor unpack_fp8(const at::Tensor& matrix, const at::Tensor& scales, ScaleBlock block,
                      int64_t begin, int64_t end) {
  const int64_t columns = matrix.size(1);
  const at::Tensor grid = scales.to(at::kFloat).view({blocks_of(matrix.size(0), block.rows), -1});
  at::Tensor result = at::empty({end - begin}, at::kFloat);
  for (int64_t element = begin; element < end;) {
    const int64_t row = element / columns;
    const int64_t rows = std::min(kRowsAtOnce, blocks_of(end, columns) - row);
    const int64_t skipped = element - row * columns;
    const int64_t count = std::min(rows * columns - skipped, end - element);
    result.narrow(0, element - begin, count)
        .copy_(unpack_rows(matrix, grid, block, row, rows).view({-1}).narrow(0, skipped, count));
    element += count;
  }
  return result;
}

}  // namespace ringside::engine
