// Files of images to pixels: JPEG, PNG and WebP, recognised by their content; and pixels to JPEG.
// The libraries are loaded with the first image, so that programs start without them. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/images/rgb_image.h"

namespace ringside::engine {

// What is refused before anything is decoded.
struct ImageLimits {
  int64_t file_bytes = int64_t{32} << 20;
  // Height times width. While an image is decoded at most 16 bytes a pixel are held, 3 afterwards.
  int64_t pixels = 100'000'000;
  // The longer side by the shorter one; image processors refuse more.
  double side_ratio = 200.0;
};

// The size that decode_image() gives, read from the head of the file.
// Throws: as decode_image, for what the head shows.
ImageSize image_size(std::span<const uint8_t> bytes, const ImageLimits& limits = {});

// The pixels of a file, as Pillow decodes them. An EXIF orientation is applied. Alpha, also that of
// a palette or of one colour, is composed over white. Grey and palettes become RGB. Colour profiles
// and gamma are not applied. Of an animation the first frame is taken.
// Throws: std::runtime_error "the image ..." when it is of another format, beyond the limits,
// damaged, cut off, of 16 bits a channel or in CMYK, and when this program was built without the
// libraries or cannot load them.
// Thread safety: safe from any thread.
RgbImage decode_image(std::span<const uint8_t> bytes, const ImageLimits& limits = {});

// The image as a JPEG file of this quality, 1 to 100.
// Throws: std::runtime_error "the image ..." when libjpeg refuses its size, and when this program
// was built without the libraries or cannot load them.
// Thread safety: safe from any thread.
std::vector<uint8_t> write_jpeg(const RgbImage& image, int quality);

// Whether the libraries can be loaded. Thread safety: safe from any thread.
bool can_decode_images();

}  // namespace ringside::engine
