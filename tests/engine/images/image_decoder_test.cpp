// Guards: pixels that differ from what other programs see (orientation, alpha), and files that
// crash, hang or take memory in place of being refused. image_oracle.py compares pixels with
// Pillow.
#include "engine/images/image_decoder.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/images/exif_orientation.h"

namespace ringside::engine {
namespace {

using Catch::Contains;
using Bytes = std::vector<uint8_t>;

Bytes sample(const std::string& name) {
  std::ifstream file(std::filesystem::path(RINGSIDE_FUZZ_CORPUS) / "image" / name,
                     std::ios::binary);
  Bytes bytes{std::istreambuf_iterator<char>(file), {}};
  REQUIRE_FALSE(bytes.empty());
  return bytes;
}

std::string refusal(const Bytes& bytes, const ImageLimits& limits = {}) {
  try {
    decode_image(bytes, limits);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

// Bytes of memory that this process holds at its peak. Linux.
int64_t peak_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    if (word == "VmHWM:") {
      int64_t kib = 0;
      file >> kib;
      return kib * 1024;
    }
  }
  return 0;
}

TEST_CASE("each format decodes to its size, and an EXIF orientation turns it") {
  REQUIRE(can_decode_images());
  for (const char* name :
       {"rgb.jpg", "progressive.jpg", "grey.jpg", "rgb.png", "rgba.png", "palette_alpha.png",
        "two_bits.png", "interlaced.png", "lossy.webp", "lossless_alpha.webp", "animated.webp"}) {
    INFO(name);
    const RgbImage image = decode_image(sample(name));
    CHECK(image.height == 10);
    CHECK(image.width == 14);
    CHECK(image.rgb.size() == 10u * 14u * 3u);
  }
  for (const char* name : {"exif_6.jpg", "exif_6.png", "exif_6.webp"}) {
    INFO(name);
    CHECK(image_size(sample(name)) == ImageSize{14, 10});
    CHECK(decode_image(sample(name)).height == 14);
  }
  const RgbImage upright_image = decode_image(sample("rgb.png"));
  CHECK(decode_image(sample("interlaced.png")) == upright_image);
  CHECK(decode_image(sample("exif_6.png")) == upright(upright_image, 6));
}

TEST_CASE("the eight orientations put each corner where the camera saw it") {
  // Corners by their names, as they are stored: a b / c d, three rows of two pixels.
  const RgbImage stored{3, 2, {'a', 0, 0, 'b', 0, 0, 0, 0, 0, 0, 0, 0, 'c', 0, 0, 'd', 0, 0}};
  const auto corners = [&](int orientation) {
    const RgbImage seen = upright(stored, orientation);
    const auto at = [&](int64_t y, int64_t x) {
      return static_cast<char>(seen.rgb[static_cast<std::size_t>(3 * (y * seen.width + x))]);
    };
    return std::string{at(0, 0), at(0, seen.width - 1), at(seen.height - 1, 0),
                       at(seen.height - 1, seen.width - 1)};
  };
  CHECK(corners(1) == "abcd");
  CHECK(corners(2) == "badc");
  CHECK(corners(3) == "dcba");
  CHECK(corners(4) == "cdab");
  CHECK(corners(5) == "acbd");
  CHECK(corners(6) == "cadb");
  CHECK(corners(7) == "dbca");
  CHECK(corners(8) == "bdac");
  CHECK_THROWS_WITH(upright(stored, 9), Contains("expected 1 to 8"));
}

TEST_CASE("an EXIF block that is cut, loops or says nonsense is upright") {
  const Bytes good = {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, 6, 0, 0, 0};
  CHECK(exif_orientation(good) == 6);
  for (std::size_t length = 0; length + 2 < good.size(); ++length) {
    CHECK(exif_orientation(Bytes(good.begin(), good.begin() + static_cast<long>(length))) == 1);
  }
  for (const auto& [at, value] : std::vector<std::pair<std::size_t, uint8_t>>{
           {0, 'M'}, {2, 43}, {4, 0xFF}, {7, 0xFF}, {12, 7}, {14, 2}, {18, 9}, {18, 0}}) {
    Bytes bad = good;
    bad[at] = value;
    INFO(at);
    CHECK(exif_orientation(bad) == 1);
  }
}

TEST_CASE("forms whose pixels programs disagree on are refused by name") {
  CHECK_THAT(refusal(sample("hostile_cmyk.jpg")), Contains("CMYK"));
  CHECK_THAT(refusal(sample("hostile_16_bits.png")), Contains("16 bits"));
  CHECK_THAT(refusal(sample("hostile_gif")), Contains("is a GIF; expected JPEG, PNG or WebP"));
  CHECK_THAT(refusal({'h', 'e', 'l', 'l', 'o'}), Contains("neither JPEG, PNG nor WebP"));
  CHECK_THAT(refusal({}), Contains("is empty"));
}

TEST_CASE("heads that lie and bombs are refused before memory is taken") {
  decode_image(sample("rgb.jpg"));  // loads the libraries
  const int64_t before = peak_bytes();
  CHECK_THAT(refusal(sample("hostile_head.jpg")), Contains("more than 747 bytes can hold"));
  CHECK_THAT(refusal(sample("hostile_head.png")), Contains("more than 74 bytes can hold"));
  CHECK_THAT(refusal(sample("hostile_bomb.png")),
             Contains("20000 rows of 20000 pixels, expected at most 100000000"));
  CHECK_THAT(refusal(sample("hostile_bomb.webp")), Contains("16383 rows of 16383 pixels"));
  CHECK_THAT(refusal(sample("hostile_scans.jpg")), Contains("more than 100 scans"));
  CHECK_THAT(refusal(sample("hostile_palette.png")), Contains("palette"));
  CHECK(refusal(sample("hostile_text.png")) == "");  // the text is passed over, not inflated
  CHECK(peak_bytes() - before < 8 << 20);
}

TEST_CASE("the limits hold for file, pixels and the ratio of the sides") {
  const Bytes bytes = sample("rgb.png");
  const auto size = static_cast<int64_t>(bytes.size());
  CHECK(refusal(bytes, {.file_bytes = size, .pixels = 140}) == "");
  CHECK_THAT(refusal(bytes, {.file_bytes = size - 1}), Contains("bytes, expected at most"));
  CHECK_THAT(refusal(bytes, {.pixels = 139}), Contains("10 rows of 14 pixels"));
  CHECK_THAT(refusal(bytes, {.side_ratio = 1.3}), Contains("ratio"));
}

TEST_CASE("a file that ends early is refused at every length") {
  for (const char* name : {"rgb.jpg", "progressive.jpg", "rgb.png", "interlaced.png", "lossy.webp",
                           "lossless_alpha.webp", "animated.webp"}) {
    const Bytes whole = sample(name);
    for (std::size_t length = 0; length < whole.size(); ++length) {
      INFO(name << " cut to " << length);
      const Bytes part(whole.begin(), whole.begin() + static_cast<long>(length));
      CHECK(refusal(part).starts_with("the image "));
    }
  }
}

}  // namespace
}  // namespace ringside::engine
