// Matrices in 8-bit floats (e4m3) with scales, as DeepSeek-V3, Qwen3-*-FP8 and compressed-tensors
// are stored: beside X stands X_scale_inv or X_scale, and the value is X times the scale of its
// block, row or matrix.
//
// Source: DeepSeek-V3, inference/kernel.py (weight_dequant); transformers 5.9, finegrained_fp8.py
// (Fp8Dequantize); compressed-tensors (dequantize).
//
// Shapes: X [O, I]. Scales [ceil(O / rows), ceil(I / columns)] of a block: the last ones may be
// partial; [O, 1] or [O] of rows; one element of the matrix.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/architectures/quantisation_fields.h"
#include "engine/io/safetensors.h"

namespace ringside::engine {

// What a scale's name adds to that of its matrix.
inline constexpr std::array<std::string_view, 2> kFp8ScaleSuffixes = {"_scale_inv", "_scale"};

// Whether a tensor holds a scale of activations or of the KV cache ("X.input_scale"), which an
// FP8 directory may have and weights do not need.
bool is_activation_scale(std::string_view name);

// The block of these scales: the whole matrix, a row, or `block`.
// Throws: std::runtime_error that says what is wrong when matrix, scales and `block` do not fit.
ScaleBlock fp8_block(const SafetensorsEntry& matrix, const SafetensorsEntry& scales,
                     ScaleBlock block);

// Elements [begin, end) of the flattened matrix, in fp32. Unpacks the rows that they belong to.
// block: as fp8_block() gives it.
at::Tensor unpack_fp8(const at::Tensor& matrix, const at::Tensor& scales, ScaleBlock block,
                      int64_t begin, int64_t end);

}  // namespace ringside::engine
