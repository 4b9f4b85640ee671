#include "engine/images/exif_orientation.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringside::engine {
namespace {

constexpr uint32_t kOrientationTag = 0x0112;

// The integers of a TIFF block, in its byte order.
class TiffBlock {
 public:
  TiffBlock(std::span<const uint8_t> bytes, bool big) : bytes_(bytes), big_(big) {}

  // `count` bytes at an offset as one integer; none outside of the block.
  std::optional<uint32_t> integer(std::size_t at, std::size_t count) const {
    if (at > bytes_.size() || bytes_.size() - at < count) {
      return std::nullopt;
    }
    uint32_t value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      value = value << 8 | bytes_[at + (big_ ? i : count - 1 - i)];
    }
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
  bool big_;
};

// The value of a directory's entry at an offset: one BYTE, SHORT or LONG.
std::optional<uint32_t> entry_value(const TiffBlock& block, std::size_t at) {
  const auto type = block.integer(at + 2, 2);
  const auto count = block.integer(at + 4, 4);
  if (count != 1u) {
    return std::nullopt;
  }
  const std::size_t bytes = type == 1u ? 1 : type == 3u ? 2 : type == 4u ? 4 : 0;
  return bytes == 0 ? std::nullopt : block.integer(at + 8, bytes);
}

}  // namespace

int exif_orientation(std::span<const uint8_t> exif) {
  constexpr char kPrefix[] = {'E', 'x', 'i', 'f', 0, 0};
  while (exif.size() >= sizeof kPrefix && std::memcmp(exif.data(), kPrefix, sizeof kPrefix) == 0) {
    exif = exif.subspan(sizeof kPrefix);
  }
  if (exif.size() < 8 || exif[0] != exif[1] || (exif[0] != 'I' && exif[0] != 'M')) {
    return 1;
  }
  const TiffBlock block(exif, exif[0] == 'M');
  const auto directory = block.integer(4, 4);
  const auto entries = block.integer(*directory, 2);
  if (block.integer(2, 2) != 42u || !entries) {
    return 1;
  }
  for (std::size_t i = 0; i < *entries; ++i) {
    const std::size_t at = std::size_t{*directory} + 2 + 12 * i;
    const auto tag = block.integer(at, 2);
    if (!tag) {
      return 1;
    }
    if (*tag == kOrientationTag) {
      const auto value = entry_value(block, at);
      return value && *value >= 1 && *value <= 8 ? static_cast<int>(*value) : 1;
    }
  }
  return 1;
}

ImageSize upright(ImageSize size, int orientation) {
  return orientation >= 5 ? ImageSize{size.width, size.height} : size;
}

RgbImage upright(RgbImage image, int orientation) {
  if (orientation < 1 || orientation > 8) {
    throw std::invalid_argument("orientation " + std::to_string(orientation) + ", expected 1 to 8");
  }
  if (orientation == 1) {
    return image;
  }
  // Pixel (row, column) of the result is pixel (y, x) of the image, mirrored where the bits say so.
  const bool exchanged = orientation >= 5;
  const bool from_right =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_below =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const ImageSize size = upright(ImageSize{image.height, image.width}, orientation);
  RgbImage turned{size.height, size.width, std::vector<uint8_t>(image.rgb.size())};
  uint8_t* to = turned.rgb.data();
  for (int64_t row = 0; row < size.height; ++row) {
    for (int64_t column = 0; column < size.width; ++column, to += 3) {
      int64_t y = exchanged ? column : row;
      int64_t x = exchanged ? row : column;
      y = from_below ? image.height - 1 - y : y;
      x = from_right ? image.width - 1 - x : x;
      std::copy_n(image.rgb.data() + 3 * (y * image.width + x), 3, to);
    }
  }
  return turned;
}

}  // namespace ringside::engine
