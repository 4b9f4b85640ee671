// EXIF orientation: how the camera was held, and turning an image upright. Torch-free.
#pragma once

#include <cstdint>
#include <span>

#include "engine/images/rgb_image.h"

namespace ringside::engine {

// The orientation, 1 to 8, that an EXIF block names: tag 0x0112 of its first directory. The block
// is a TIFF header and what follows, with or without "Exif\0\0" before it. Returns 1 (upright) for
// a block that is damaged, has no such tag, or has a value out of range.
// Source: EXIF 2.32, section 4.6; the same values as Pillow's Image.getexif().
int exif_orientation(std::span<const uint8_t> exif);

// Size after upright(): 5 to 8 exchange height and width.
ImageSize upright(ImageSize size, int orientation);

// The image as it should be looked at, as Pillow's ImageOps.exif_transpose().
// Throws: std::invalid_argument for an orientation outside 1 to 8.
RgbImage upright(RgbImage image, int orientation);

}  // namespace ringside::engine
