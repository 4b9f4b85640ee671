#include "engine/images/image_decoder.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "engine/images/exif_orientation.h"
#include "engine/images/formats/image_codec.h"

namespace ringside::engine {
namespace {

// A function of the library, which stays loaded.
// Throws: std::runtime_error with the loader's message.
void* library_symbol(const char* name) {
  void* const library = ::dlopen(kImageLibrary, RTLD_NOW | RTLD_LOCAL);
  void* const symbol = library == nullptr ? nullptr : ::dlsym(library, name);
  if (symbol == nullptr) {
    throw std::runtime_error(
        "the image cannot be read or written, because the libraries for images cannot be loaded: " +
        std::string(::dlerror()) + "; tools/setup.sh installs and builds them");
  }
  return symbol;
}

std::span<const ImageCodec> codecs() {
  static const auto loaded = reinterpret_cast<ImageCodecs>(library_symbol(kImageSymbol))();
  return loaded;
}

struct Signature {
  std::size_t at;
  std::string_view bytes;
  const char* name;
};
constexpr std::array<Signature, 10> kOtherFormats = {{{0, "GIF8", "a GIF"},
                                                      {4, "ftypavi", "an AVIF"},
                                                      {4, "ftyphei", "a HEIC"},
                                                      {4, "ftyphev", "a HEIC"},
                                                      {4, "ftypmif1", "a HEIF"},
                                                      {0, "BM", "a BMP"},
                                                      {0, {"II*\0", 4}, "a TIFF"},
                                                      {0, {"MM\0*", 4}, "a TIFF"},
                                                      {0, "<svg", "an SVG"},
                                                      {0, "%PDF", "a PDF"}}};

[[noreturn]] void fail(const std::string& problem) {
  throw std::runtime_error("the image " + problem);
}

const ImageCodec& codec_of(std::span<const uint8_t> bytes) {
  for (const ImageCodec& codec : codecs()) {
    if (codec.begins(bytes)) {
      return codec;
    }
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const Signature& one : kOtherFormats) {
    if (text.size() > one.at && text.substr(one.at).starts_with(one.bytes)) {
      fail("is " + std::string(one.name) + "; expected JPEG, PNG or WebP");
    }
  }
  fail(bytes.empty() ? "is empty" : "is neither JPEG, PNG nor WebP");
}

void check_size(const ImageHeader& header, const ImageLimits& limits) {
  const std::string size =
      std::to_string(header.height) + " rows of " + std::to_string(header.width) + " pixels";
  if (header.height < 1 || header.width < 1) {
    fail("has " + size + ", expected at least one");
  }
  if (header.width > limits.pixels / header.height) {
    fail("has " + size + ", expected at most " + std::to_string(limits.pixels) +
         " pixels altogether");
  }
  const auto [shorter, longer] = std::minmax(header.height, header.width);
  if (static_cast<double>(longer) / static_cast<double>(shorter) > limits.side_ratio) {
    fail("has " + size + ", expected sides of a ratio of at most " +
         std::to_string(static_cast<int64_t>(limits.side_ratio)));
  }
}

ImageHeader read_header(const ImageCodec& codec, std::span<const uint8_t> bytes,
                        const ImageLimits& limits) {
  if (static_cast<int64_t>(bytes.size()) > limits.file_bytes) {
    fail("is a file of " + std::to_string(bytes.size()) + " bytes, expected at most " +
         std::to_string(limits.file_bytes));
  }
  ImageHeader header = [&] {
    try {
      return codec.header(bytes);
    } catch (const std::runtime_error& error) {
      fail(error.what());
    }
  }();
  check_size(header, limits);
  return header;
}

// Pixels of 4 bytes over white, in the first 3 bytes each of the same memory.
// Source: Pillow's paste() with a mask (MULDIV255 in libImaging/ImagingUtils.h).
void compose_over_white(std::vector<uint8_t>& pixels) {
  const std::size_t count = pixels.size() / 4;
  const uint8_t* from = pixels.data();
  uint8_t* to = pixels.data();
  for (std::size_t i = 0; i < count; ++i, from += 4, to += 3) {
    const uint32_t alpha = from[3];
    for (int c = 0; c < 3; ++c) {
      const uint32_t sum = 255u * (255u - alpha) + from[c] * alpha + 128u;
      to[c] = static_cast<uint8_t>(((sum >> 8) + sum) >> 8);
    }
  }
  pixels.resize(count * 3);
}

}  // namespace

ImageSize image_size(std::span<const uint8_t> bytes, const ImageLimits& limits) {
  const ImageHeader header = read_header(codec_of(bytes), bytes, limits);
  return upright(ImageSize{header.height, header.width}, exif_orientation(header.exif));
}

RgbImage decode_image(std::span<const uint8_t> bytes, const ImageLimits& limits) {
  const ImageCodec& codec = codec_of(bytes);
  const ImageHeader header = read_header(codec, bytes, limits);
  RgbImage image{header.height, header.width, {}};
  image.rgb.resize(static_cast<std::size_t>(header.height * header.width * header.channels));
  try {
    codec.decode(bytes, header, image.rgb.data());
  } catch (const std::runtime_error& error) {
    fail(error.what());
  }
  if (header.channels == 4) {
    compose_over_white(image.rgb);
  }
  return upright(std::move(image), exif_orientation(header.exif));
}

std::vector<uint8_t> write_jpeg(const RgbImage& image, int quality) {
  static const auto write = reinterpret_cast<JpegWriter>(library_symbol(kJpegWriterSymbol));
  try {
    return write(image.height, image.width, image.rgb.data(), quality);
  } catch (const std::runtime_error& error) {
    fail(error.what());
  }
}

bool can_decode_images() {
  try {
    return !codecs().empty();
  } catch (const std::runtime_error&) {
    return false;
  }
}

}  // namespace ringside::engine
