// JPEG by libjpeg-turbo: the default transform and the default upsampling, as Pillow.
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

// After <cstdio>, which jpeglib.h needs and does not include.
#include <jerror.h>
#include <jpeglib.h>

#include "engine/images/formats/codecs.h"
#include "engine/images/formats/jpeg_errors.h"

namespace ringside::engine {
namespace {

// A file can ask for one pass over the image after another in a few bytes each; encoders write
// fewer than 20.
constexpr int kMostScans = 100;
// Each block of 8 x 8 values of the component with most takes a bit of the file at least.
constexpr int64_t kMostPixelsPerByte = 8 * 64;

// Warnings after which libjpeg goes on with values that it has made up.
bool is_damage(int code) {
  return code == JWRN_BOGUS_PROGRESSION || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE ||
         code == JWRN_JPEG_EOF || code == JWRN_MUST_RESYNC;
}

void warn(j_common_ptr info, int level) {
  if (level < 0 && is_damage(info->err->msg_code)) {
    jump_with_message(info);
  }
}

void count_scans(j_common_ptr info) {
  auto* decoder = reinterpret_cast<j_decompress_ptr>(info);
  if (decoder->input_scan_number > kMostScans) {
    auto* errors = reinterpret_cast<JpegErrors*>(info->err);
    std::snprintf(errors->message, sizeof errors->message, "it has more than %d scans", kMostScans);
    std::longjmp(errors->jump, 1);
  }
}

// One decoder. A call of libjpeg that fails comes back by longjmp, so each function that calls
// libjpeg has no object with a destructor of its own.
class JpegReader {
 public:
  explicit JpegReader(std::span<const uint8_t> bytes) : bytes_(bytes) {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = jump_with_message;
    errors_.base.emit_message = warn;
    progress_.progress_monitor = count_scans;
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  const jpeg_decompress_struct& info() const { return info_; }
  // nullptr, or what libjpeg says.
  const char* read_header() {
    if (setjmp(errors_.jump) != 0) {
      return errors_.message;
    }
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, bytes_.data(), bytes_.size());
    jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xFFFF);
    jpeg_read_header(&info_, TRUE);
    return nullptr;
  }
  // The same. pixels: [height, width, 3]; most_bytes: what libjpeg may allocate.
  const char* decode(uint8_t* pixels, long most_bytes) {
    if (setjmp(errors_.jump) != 0) {
      return errors_.message;
    }
    info_.mem->max_memory_to_use = most_bytes;
    info_.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info_);
    const auto stride = static_cast<std::size_t>(info_.output_width) * 3;
    while (info_.output_scanline < info_.output_height) {
      JSAMPROW row = pixels + stride * info_.output_scanline;
      jpeg_read_scanlines(&info_, &row, 1);
    }
    jpeg_finish_decompress(&info_);  // to the end of the image, which the file must have
    return nullptr;
  }

 private:
  std::span<const uint8_t> bytes_;
  jpeg_decompress_struct info_{};
  JpegErrors errors_{};
  jpeg_progress_mgr progress_{};
};

[[noreturn]] void fail(const std::string& problem) {
  throw std::runtime_error("is a JPEG that cannot be decoded: " + problem);
}

void read_header(JpegReader& reader) {
  if (const char* problem = reader.read_header()) {
    fail(problem);
  }
}

bool begins(std::span<const uint8_t> bytes) {
  return bytes.size() >= 3 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF;
}

ImageHeader header(std::span<const uint8_t> bytes) {
  JpegReader reader(bytes);
  read_header(reader);
  const jpeg_decompress_struct& info = reader.info();
  if (info.num_components == 4) {
    throw std::runtime_error(
        "is a JPEG in CMYK, whose colours depend on the program that shows it; expected RGB or "
        "grey: convert it");
  }
  if (info.num_components != 1 && info.num_components != 3) {
    fail("it has " + std::to_string(info.num_components) + " components, expected 1 or 3");
  }
  if (info.arith_code != 0) {
    fail("it is arithmetic coded, expected Huffman coding");
  }
  const auto pixels = static_cast<int64_t>(info.image_width) * info.image_height;
  if (pixels / kMostPixelsPerByte > static_cast<int64_t>(bytes.size())) {
    fail("its head says " + std::to_string(info.image_width) + " x " +
         std::to_string(info.image_height) + " pixels, more than " + std::to_string(bytes.size()) +
         " bytes can hold");
  }
  ImageHeader out{info.image_height, info.image_width, 3, {}};
  for (auto marker = info.marker_list; marker != nullptr; marker = marker->next) {
    if (marker->data_length >= 6 && std::memcmp(marker->data, "Exif\0", 6) == 0) {
      out.exif.assign(marker->data, marker->data + marker->data_length);
      break;
    }
  }
  return out;
}

void decode(std::span<const uint8_t> bytes, const ImageHeader& header, uint8_t* pixels) {
  JpegReader reader(bytes);
  read_header(reader);
  // A progressive image is kept as coefficients: 2 bytes a value, 3 values a pixel, and as much
  // again for odd sampling; rows and tables on top.
  const long most = 12L * header.height * header.width + (64L << 20);
  if (const char* problem = reader.decode(pixels, most)) {
    fail(problem);
  }
}

}  // namespace

const ImageCodec kJpegCodec = {"JPEG", begins, header, decode};

}  // namespace ringside::engine
