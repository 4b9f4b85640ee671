// PNG by libpng. Gamma and colour profiles are not applied, as by Pillow.
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/images/formats/codecs.h"

namespace ringside::engine {
namespace {

constexpr uint8_t kSignature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
constexpr std::size_t kChunkHead = 8, kChunkTail = 4;
// Deflate makes at most 1032 bytes of one.
constexpr int64_t kMostInflation = 1032;
constexpr png_alloc_size_t kLargestChunk = 8u << 20;

// Ancillary chunks that say nothing of the pixels: passed over, not inflated.
constexpr png_byte kPassedOver[] =
    "bKGD\0cHRM\0eXIf\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0sRGB\0tEXt\0tIME"
    "\0zTXt";
constexpr int kPassedOverCount = sizeof kPassedOver / 5;

// libpng comes back by longjmp, so each function of this class that calls it has no object with a
// destructor of its own.
class PngReader {
 public:
  explicit PngReader(std::span<const uint8_t> bytes) : left_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, stop, warn);
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
    if (info_ == nullptr) {
      throw std::bad_alloc();
    }
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  // nullptr, or what libpng says.
  const char* read_header() {
    if (setjmp(png_jmpbuf(png_)) != 0) {
      return message_;
    }
    png_set_read_fn(png_, this, read);
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // the caller has its own
    png_set_chunk_malloc_max(png_, kLargestChunk);
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, kPassedOver, kPassedOverCount);
    png_read_info(png_, info_);
    return nullptr;
  }
  // The same. rows: of the image, in the channels of has_alpha(), or of a palette its indices, a
  // byte each.
  const char* decode(uint8_t** rows) {
    if (setjmp(png_jmpbuf(png_)) != 0) {
      return message_;
    }
    if (has_palette()) {
      png_set_packing(png_);
    } else {
      png_set_expand(png_);  // fewer than 8 bits to 8 bits, one transparent colour to alpha
      png_set_gray_to_rgb(png_);
    }
    png_read_image(png_, rows);
    png_read_end(png_, nullptr);
    return nullptr;
  }

  int64_t height() const { return png_get_image_height(png_, info_); }
  int64_t width() const { return png_get_image_width(png_, info_); }
  int bit_depth() const { return png_get_bit_depth(png_, info_); }
  int64_t bytes_per_row() const { return static_cast<int64_t>(png_get_rowbytes(png_, info_)); }
  bool has_alpha() const {
    return (png_get_color_type(png_, info_) & PNG_COLOR_MASK_ALPHA) != 0 ||
           png_get_valid(png_, info_, PNG_INFO_tRNS) != 0;
  }
  bool has_palette() const { return png_get_color_type(png_, info_) == PNG_COLOR_TYPE_PALETTE; }
  // The colours of the palette, with alpha.
  std::vector<std::array<uint8_t, 4>> palette() const {
    int colours = 0, alphas = 0;
    png_colorp colour = nullptr;
    png_bytep alpha = nullptr;
    png_get_PLTE(png_, info_, &colour, &colours);
    png_get_tRNS(png_, info_, &alpha, &alphas, nullptr);
    std::vector<std::array<uint8_t, 4>> out;
    for (int i = 0; i < colours; ++i) {
      const uint8_t opacity = i < alphas ? alpha[i] : uint8_t{255};
      out.push_back({colour[i].red, colour[i].green, colour[i].blue, opacity});
    }
    return out;
  }

 private:
  static void stop(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(self->message_, sizeof self->message_, "%s", message);
    png_longjmp(png, 1);
  }
  static void warn(png_structp, png_const_charp) {}
  static void read(png_structp png, png_bytep to, std::size_t count) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (self->left_.size() < count) {
      png_error(png, "the file ends early");
    }
    std::memcpy(to, self->left_.data(), count);
    self->left_ = self->left_.subspan(count);
  }

  std::span<const uint8_t> left_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  char message_[128] = {};
};

[[noreturn]] void fail(const std::string& problem) {
  throw std::runtime_error("is a PNG that cannot be decoded: " + problem);
}

void read_header(PngReader& reader) {
  if (const char* problem = reader.read_header()) {
    fail(problem);
  }
}

// The content of the first eXIf chunk, which may stand before or after the pixels.
std::vector<uint8_t> exif_chunk(std::span<const uint8_t> bytes) {
  std::size_t at = sizeof kSignature;
  while (bytes.size() - at >= kChunkHead + kChunkTail) {
    const uint8_t* head = bytes.data() + at;
    const std::size_t length = png_get_uint_32(head);
    if (length > bytes.size() - at - kChunkHead - kChunkTail) {
      return {};
    }
    if (std::memcmp(head + 4, "eXIf", 4) == 0) {
      return {head + kChunkHead, head + kChunkHead + length};
    }
    at += kChunkHead + length + kChunkTail;
  }
  return {};
}

bool begins(std::span<const uint8_t> bytes) {
  return bytes.size() >= sizeof kSignature &&
         std::memcmp(bytes.data(), kSignature, sizeof kSignature) == 0;
}

ImageHeader header(std::span<const uint8_t> bytes) {
  PngReader reader(bytes);
  read_header(reader);
  if (reader.bit_depth() == 16) {
    throw std::runtime_error(
        "is a PNG of 16 bits a channel, which programs cut to 8 bits in different ways; expected 8 "
        "bits: convert it");
  }
  if (reader.height() * reader.bytes_per_row() / kMostInflation >
      static_cast<int64_t>(bytes.size())) {
    fail("its head says " + std::to_string(reader.width()) + " x " +
         std::to_string(reader.height()) + " pixels, more than " + std::to_string(bytes.size()) +
         " bytes can hold");
  }
  return {reader.height(), reader.width(), reader.has_alpha() ? 4 : 3, exif_chunk(bytes)};
}

// Replaces indices by colours. Not libpng: it makes black of an index that the palette lacks.
// indices: the last bytes of `pixels`, so that each is read before it is overwritten.
void apply_palette(const std::vector<std::array<uint8_t, 4>>& palette, const uint8_t* indices,
                   const ImageHeader& header, uint8_t* pixels) {
  const int64_t count = header.height * header.width;
  for (int64_t i = 0; i < count; ++i, pixels += header.channels) {
    const std::size_t index = indices[i];
    if (index >= palette.size()) {
      fail("a pixel names a colour that its palette does not have");
    }
    std::copy_n(palette[index].data(), header.channels, pixels);
  }
}

void decode(std::span<const uint8_t> bytes, const ImageHeader& header, uint8_t* pixels) {
  PngReader reader(bytes);
  read_header(reader);
  const int64_t stored = reader.has_palette() ? 1 : header.channels;
  uint8_t* const first = pixels + (header.channels - stored) * header.height * header.width;
  std::vector<uint8_t*> rows(static_cast<std::size_t>(header.height));
  for (std::size_t y = 0; y < rows.size(); ++y) {
    rows[y] = first + y * static_cast<std::size_t>(header.width * stored);
  }
  if (const char* problem = reader.decode(rows.data())) {
    fail(problem);
  }
  if (reader.has_palette()) {
    apply_palette(reader.palette(), first, header, pixels);
  }
}

}  // namespace

const ImageCodec kPngCodec = {"PNG", begins, header, decode};

}  // namespace ringside::engine
