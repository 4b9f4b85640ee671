// JPEG files by libjpeg-turbo, at its default settings.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

// After <cstdio>, which jpeglib.h needs and does not include.
#include <jpeglib.h>

#include "engine/images/formats/image_codec.h"
#include "engine/images/formats/jpeg_errors.h"

namespace {

// One encoder. A call of libjpeg that fails comes back by longjmp, so encode() has no object with a
// destructor of its own.
class Encoder {
 public:
  Encoder() {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = ringside::engine::jump_with_message;
  }
  ~Encoder() {
    jpeg_destroy_compress(&info_);
    std::free(bytes_);
  }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // nullptr, or what libjpeg says.
  const char* encode(int64_t height, int64_t width, const uint8_t* rgb, int quality) {
    if (setjmp(errors_.jump) != 0) {
      return errors_.message;
    }
    jpeg_create_compress(&info_);
    jpeg_mem_dest(&info_, &bytes_, &size_);
    info_.image_height = static_cast<JDIMENSION>(height);
    info_.image_width = static_cast<JDIMENSION>(width);
    info_.input_components = 3;
    info_.in_color_space = JCS_RGB;
    jpeg_set_defaults(&info_);
    jpeg_set_quality(&info_, quality, TRUE);
    jpeg_start_compress(&info_, TRUE);
    while (info_.next_scanline < info_.image_height) {
      auto* row = const_cast<JSAMPROW>(rgb + info_.next_scanline * width * 3);
      jpeg_write_scanlines(&info_, &row, 1);
    }
    jpeg_finish_compress(&info_);
    return nullptr;
  }
  std::span<const uint8_t> bytes() const { return {bytes_, size_}; }

 private:
  jpeg_compress_struct info_{};
  ringside::engine::JpegErrors errors_{};
  unsigned char* bytes_ = nullptr;  // allocated by libjpeg
  unsigned long size_ = 0;
};

}  // namespace

extern "C" std::vector<uint8_t> ringside_write_jpeg(int64_t height, int64_t width,
                                                    const uint8_t* rgb, int quality) {
  Encoder encoder;
  if (const char* problem = encoder.encode(height, width, rgb, quality)) {
    throw std::runtime_error("cannot be encoded as a JPEG: " + std::string(problem));
  }
  const std::span<const uint8_t> bytes = encoder.bytes();
  return {bytes.begin(), bytes.end()};
}
