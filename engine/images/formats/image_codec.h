// Entry of the shared library that links libjpeg-turbo, libpng and libwebp. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ringside::engine {

// What the head of a file says.
struct ImageHeader {
  int64_t height = 0;  // as stored, before the orientation is applied
  int64_t width = 0;
  int64_t channels = 3;       // of the decoded pixels: 3, or 4 with alpha last, not premultiplied
  std::vector<uint8_t> exif;  // empty: none
};

// A format. Both functions throw std::runtime_error with what is wrong with the bytes: the rest of
// a sentence that begins with "the image ", without the name of a file.
// Thread safety: safe from any thread.
struct ImageCodec {
  const char* name;  // "JPEG"
  // Whether a file begins as this format does.
  bool (*begins)(std::span<const uint8_t> bytes);
  // Reads the head. Allocates no more than the EXIF block.
  ImageHeader (*header)(std::span<const uint8_t> bytes);
  // Decodes into pixels [height, width, channels] of the header that header() returned, whose
  // memory the caller has. Of an animation the first frame.
  void (*decode)(std::span<const uint8_t> bytes, const ImageHeader& header, uint8_t* pixels);
};

// Found in the run path of the program.
inline constexpr const char* kImageLibrary = "libringside_images.so";
inline constexpr const char* kImageSymbol = "ringside_image_codecs";

// Encodes pixels [height, width, 3] as a JPEG of this quality, 1 to 100. Throws: as ImageCodec.
using JpegWriter = std::vector<uint8_t> (*)(int64_t height, int64_t width, const uint8_t* rgb,
                                            int quality);
inline constexpr const char* kJpegWriterSymbol = "ringside_write_jpeg";

// What kImageSymbol is: all codecs of the library.
using ImageCodecs = std::span<const ImageCodec> (*)();

}  // namespace ringside::engine
