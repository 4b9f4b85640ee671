#include "engine/images/image_processor.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "engine/images/resize.h"

namespace ringside::engine {
namespace {

std::string text_of(ImageSize size) {
  return std::to_string(size.height) + " x " + std::to_string(size.width);
}

std::string content_hash(const RgbImage& image) {
  XXH3_state_t* const state = XXH3_createState();
  XXH3_128bits_reset(state);
  const std::string size = text_of({image.height, image.width}) + ":";
  XXH3_128bits_update(state, size.data(), size.size());
  XXH3_128bits_update(state, image.rgb.data(), image.rgb.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

// The 256 values that a channel can have.
using ValueTable = std::array<std::array<float, 256>, 3>;

ValueTable value_table(const ProcessorOptions& options) {
  // As the package: both products in fp32, then one subtraction and one division.
  const auto scale = static_cast<float>(1.0 / options.rescale);
  ValueTable table;
  for (std::size_t c = 0; c < 3; ++c) {
    const float mean = static_cast<float>(options.mean[c]) * scale;
    const float deviation = static_cast<float>(options.standard_deviation[c]) * scale;
    for (std::size_t x = 0; x < 256; ++x) {
      table[c][x] = (static_cast<float>(x) - mean) / deviation;
    }
  }
  return table;
}

// One row: the patch at (y, x), in patches.
void write_row(const RgbImage& image, const ProcessorOptions& options, const ValueTable& table,
               int64_t y, int64_t x, float* to) {
  const int64_t side = options.patch;
  for (std::size_t c = 0; c < 3; ++c) {
    float* const frame = to;
    for (int64_t i = 0; i < side; ++i) {
      const uint8_t* from = image.rgb.data() + 3 * ((y * side + i) * image.width + x * side) + c;
      for (int64_t j = 0; j < side; ++j) {
        *to++ = table[c][from[3 * j]];
      }
    }
    for (int64_t t = 1; t < options.temporal_patch; ++t) {
      to = std::copy_n(frame, side * side, to);
    }
  }
}

}  // namespace

ImageSize smart_resize(ImageSize size, const ProcessorOptions& options) {
  if (size.height < 1 || size.width < 1) {
    throw std::invalid_argument("an image of " + text_of(size) + ", expected sides of at least 1");
  }
  const auto h = static_cast<double>(size.height), w = static_cast<double>(size.width);
  if (std::max(h, w) / std::min(h, w) > 200.0) {
    throw std::invalid_argument("an image of " + text_of(size) +
                                ", expected sides of a ratio of at most 200");
  }
  const auto factor = static_cast<double>(options.factor());
  const auto max_pixels = static_cast<double>(options.max_pixels);
  const auto min_pixels = static_cast<double>(options.min_pixels);
  // nearbyint: ties to even, as Python's round().
  double height = std::nearbyint(h / factor) * factor;
  double width = std::nearbyint(w / factor) * factor;
  if (height * width > max_pixels) {
    const double beta = std::sqrt(h * w / max_pixels);
    height = std::max(factor, std::floor(h / beta / factor) * factor);
    width = std::max(factor, std::floor(w / beta / factor) * factor);
  } else if (height * width < min_pixels) {
    const double beta = std::sqrt(min_pixels / (h * w));
    height = std::ceil(h * beta / factor) * factor;
    width = std::ceil(w * beta / factor) * factor;
  }
  return {static_cast<int64_t>(height), static_cast<int64_t>(width)};
}

PatchGrid patch_grid(ImageSize size, const ProcessorOptions& options) {
  const int64_t factor = options.factor();
  if (size.height < factor || size.width < factor || size.height % factor != 0 ||
      size.width % factor != 0) {
    throw std::invalid_argument("a resized image of " + text_of(size) + ", expected multiples of " +
                                std::to_string(factor));
  }
  return {1, size.height / options.patch, size.width / options.patch};
}

ProcessedImage process_image(const RgbImage& image, const ProcessorOptions& options) {
  const ImageSize size = smart_resize({image.height, image.width}, options);
  ProcessedImage out{resize_bicubic(image, size), patch_grid(size, options), {}};
  out.hash = content_hash(out.image);
  return out;
}

std::vector<float> patch_rows(const RgbImage& resized, const ProcessorOptions& options) {
  const PatchGrid grid = patch_grid({resized.height, resized.width}, options);
  const ValueTable table = value_table(options);
  const int64_t merge = options.merge;
  std::vector<float> rows(static_cast<std::size_t>(grid.patches() * options.row_size()));
  float* to = rows.data();
  for (int64_t token_y = 0; token_y < grid.height; token_y += merge) {
    for (int64_t token_x = 0; token_x < grid.width; token_x += merge) {
      for (int64_t i = 0; i < merge * merge; ++i, to += options.row_size()) {
        write_row(resized, options, table, token_y + i / merge, token_x + i % merge, to);
      }
    }
  }
  return rows;
}

}  // namespace ringside::engine
