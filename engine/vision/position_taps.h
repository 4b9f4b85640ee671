// Bilinear interpolation of a square table of learned positions to the patches of an image.
//
// Shapes: p = patches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "engine/images/image_processor.h"

namespace ringside::engine {

// Four rows of the table for each patch, and their weights, which add up to 1. fp32 in models of
// every dtype, as in transformers: trained models expect these numbers.
struct PositionTaps {
  at::Tensor row_4p;     // int64
  at::Tensor weight_4p;  // fp32
};

// The taps of images, on the CPU, patches in the order of patch_rows(). The corners of an image are
// those of the table.
// side: of the table. Shapes: both [4, p].
// Source: transformers 5.9, vision_utils.py, get_vision_bilinear_indices_and_weights.
PositionTaps position_taps(int64_t side, int64_t merge, std::span<const PatchGrid> grids);

}  // namespace ringside::engine
