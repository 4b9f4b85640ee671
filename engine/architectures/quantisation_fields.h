// quantization_config of a config.json: how the weights of a directory are stored. Torch-free.
#pragma once

#include <cstdint>
#include <string>

#include "engine/json/json_object.h"

namespace ringside::engine {

// Rows and columns of a matrix that share a scale; 0 where the file names no block, and a scale is
// one of a row or of the whole matrix.
struct ScaleBlock {
  int64_t rows = 0;
  int64_t columns = 0;
};

// Why weights of a quantization_config cannot be read, with what to do; "" when they can. Read are
// bitsandbytes' nf4, FP8 (quant_method fp8: DeepSeek-V3, Qwen3-*-FP8; compressed-tensors:
// float-quantized) and, with `mxfp4`, MXFP4. Which tensors are quantised is seen in the weight
// files, so lists of modules that are not (modules_to_not_convert, ignore) are not needed.
// Throws: std::runtime_error naming a key of another type.
std::string quantisation_problem(const JsonObject& quantised, bool mxfp4);

// The block of FP8 weights: weight_block_size of fp8, block_structure or group_size of
// compressed-tensors. Of several groups of compressed-tensors all must have the same.
// Throws: std::runtime_error naming a key that is of another type or form.
ScaleBlock scale_block(const JsonObject& quantised);

}  // namespace ringside::engine
