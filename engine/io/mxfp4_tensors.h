// Stacked experts in the form that GPT-OSS is stored in: in place of X come X_blocks, two 4-bit
// floats a byte in blocks of 32, and X_scales, one power of two a block.
//
// Source: OCP Microscaling Formats 1.0 (MXFP4); transformers 5.23 (convert_moe_packed_tensors),
// whose values and layout these are.
//
// Shapes: X = experts, O = outputs, G = blocks of an input of 32 G. Blocks are uint8 [X, O, G, 16],
// scales uint8 [X, O, G], the unpacked tensor [X, 32 G, O].
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/safetensors.h"

namespace ringside::engine {

// The name X of a tensor X_blocks; "" for any other name.
std::string mxfp4_owner(std::string_view name);

// The name of X_scales.
std::string mxfp4_scales_name(const std::string& name);

// The shape of the unpacked tensor.
// Throws: std::runtime_error that says what is wrong when blocks and scales do not fit each other.
std::vector<int64_t> mxfp4_shape(const SafetensorsEntry& blocks, const SafetensorsEntry& scales);

// Elements [begin, end) of the flattened unpacked tensor, in fp32. Unpacks the experts that they
// belong to, one at a time. A scale of 255 gives no finite values.
// Shapes: as mxfp4_shape() accepts them.
at::Tensor unpack_mxfp4(const at::Tensor& blocks, const at::Tensor& scales, int64_t begin,
                        int64_t end);

}  // namespace ringside::engine
