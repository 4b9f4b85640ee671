// Image processor: pixels to the patch rows that a vision tower takes, with the bits of
// transformers' Qwen2VLImageProcessor (the torchvision one, on the CPU). Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/images/processor_options.h"
#include "engine/images/rgb_image.h"

namespace ringside::engine {

// Patches of an image: frames, rows and columns.
struct PatchGrid {
  int64_t t = 1;
  int64_t height = 0;
  int64_t width = 0;

  int64_t patches() const { return t * height * width; }
  // Tokens in a text: one for merge x merge patches.
  int64_t tokens(int64_t merge) const { return t * (height / merge) * (width / merge); }
  bool operator==(const PatchGrid&) const = default;
};

// The size that an image is resized to: sides that are multiples of factor(), between min_pixels
// and max_pixels, of about the same ratio.
// Throws: std::invalid_argument for a side below 1 or a ratio of the sides above 200.
// Source: smart_resize in transformers/models/qwen2_vl/image_processing_qwen2_vl.py.
ImageSize smart_resize(ImageSize size, const ProcessorOptions& options);

// Patches of an image that smart_resize() gave a size. Throws: std::invalid_argument for another.
PatchGrid patch_grid(ImageSize size, const ProcessorOptions& options);

// An image as it is kept, hashed and sent: resized, 3 bytes a pixel.
struct ProcessedImage {
  RgbImage image;
  PatchGrid grid;
  // XXH3-128 of height, width and pixels, 32 lower-case hex digits: the image's identity.
  std::string hash;
};

// Resizes an image by resize_bicubic() to smart_resize().
// Throws: as smart_resize.
ProcessedImage process_image(const RgbImage& image, const ProcessorOptions& options);

// The rows of a resized image, normalised: (x - mean / rescale) / (std / rescale) in fp32.
// merge x merge rows that follow each other are one token. A row holds [3, temporal_patch, patch,
// patch].
// Shape: [patches, row_size()] fp32.
// Throws: as patch_grid.
std::vector<float> patch_rows(const RgbImage& resized, const ProcessorOptions& options);

}  // namespace ringside::engine
