// Image of three bytes a pixel. Torch-free.
#pragma once

#include <cstdint>
#include <vector>

namespace ringside::engine {

// Rows from the top, in each the pixels from the left, in each red, green and blue of 0 to 255.
// Shape: rgb [height, width, 3].
struct RgbImage {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> rgb;

  bool operator==(const RgbImage&) const = default;
};

struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;

  bool operator==(const ImageSize&) const = default;
};

}  // namespace ringside::engine
