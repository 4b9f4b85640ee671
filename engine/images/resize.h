// Resizing of 8-bit images, with the bits of LibTorch's kernel. Torch-free.
#pragma once

#include <cstdint>

#include "engine/images/rgb_image.h"

namespace ringside::engine {

// The image at another size by bicubic interpolation with antialiasing; the image itself where the
// size is the same. Each direction is done alone, the rows first, with weights of 16-bit integers
// and 8-bit values between the two.
// The same bits as torch's interpolate(mode="bicubic", antialias=True, align_corners=False) of a
// uint8 tensor on the CPU, which torchvision's resize and so transformers' processors call.
// Throws: std::invalid_argument for a size below 1 or an image without pixels.
// Source: ATen/native/cpu/UpSampleKernel.cpp, compute_index_ranges_int16_weights.
RgbImage resize_bicubic(const RgbImage& image, ImageSize size);

}  // namespace ringside::engine
