// Guards: patch rows that differ from those of transformers' processor in a single bit. Oracle:
// goldens made with the package (tests/goldens/image_processor.py).
#include "engine/images/image_processor.h"

#include <xxhash.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/temporary_directory.h"

namespace ringside::engine {
namespace {

using Catch::Contains;
using nlohmann::json;

// The recipes of image_processor.py.
RgbImage drawn(const std::string& recipe, int64_t height, int64_t width) {
  RgbImage image{height, width, {}};
  uint64_t state = 12345 + static_cast<uint64_t>(height * 1000 + width);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        if (recipe == "noise") {
          state = state * 6364136223846793005u + 1442695040888963407u;
          image.rgb.push_back(static_cast<uint8_t>(state >> 56));
        } else if (recipe == "waves") {
          image.rgb.push_back(static_cast<uint8_t>((y * (c + 2) + x * (5 - c) + y * x / 16) % 256));
        } else {
          image.rgb.push_back((y / 5 + x / 3 + c) % 2 == 0 ? 255 : 0);
        }
      }
    }
  }
  return image;
}

std::string hash_of(const std::vector<float>& values) {
  const XXH128_hash_t hash = XXH3_128bits(values.data(), values.size() * sizeof(float));
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

ProcessorOptions options_of(const std::string& text,
                            const std::string& file = "preprocessor_config.json") {
  const test::TemporaryDirectory folder;
  test::write_file(folder.path() / file, text);
  return read_processor_options(folder.path());
}

TEST_CASE("grids and patch rows equal the package's to the bit") {
  const json goldens = json::parse(std::ifstream(RINGSIDE_GOLDENS "/image_processor.json"));
  REQUIRE(goldens.at("images").size() == 54);
  for (const json& golden : goldens.at("images")) {
    INFO(golden.dump());
    const ProcessorOptions options =
        options_of(goldens.at("configs").at(golden.at("family").get<std::string>()).dump());
    const ProcessedImage image =
        process_image(drawn(golden.at("recipe"), golden.at("height"), golden.at("width")), options);
    CHECK(json({image.grid.t, image.grid.height, image.grid.width}) == golden.at("grid"));
    const std::vector<float> rows = patch_rows(image.image, options);
    CHECK(json({image.grid.patches(), options.row_size()}) == golden.at("shape"));
    CHECK(hash_of(rows) == golden.at("hash"));
  }
}

TEST_CASE("an image's hash is that of its pixels and of its shape") {
  const ProcessorOptions options;
  const RgbImage image = drawn("waves", 56, 84);
  RgbImage changed = image;
  changed.rgb[4000] ^= 1;
  const std::string hash = process_image(image, options).hash;
  CHECK(hash.size() == 32);
  CHECK(process_image(image, options).hash == hash);
  CHECK(process_image(changed, options).hash != hash);
  CHECK(process_image({84, 56, image.rgb}, options).hash != hash);
}

TEST_CASE("options of another processor, unknown keys and values beyond reason are refused") {
  CHECK(options_of(R"({"image_processor": {"patch_size": 16}})", "processor_config.json").patch ==
        16);
  CHECK(options_of(R"({"size": {"shortest_edge": 5000, "longest_edge": 9000},
                       "max_pixels": 8000})")
            .max_pixels == 8000);
  for (const auto& [text, word] : std::vector<std::pair<const char*, const char*>>{
           {R"({"image_processor_type": "CLIPImageProcessor"})", "CLIPImageProcessor"},
           {R"({"do_resize": false})", "do_resize"},
           {R"({"do_center_crop": true})", "do_center_crop"},
           {R"({"resample": 2})", "expected 3 (bicubic)"},
           {R"({"patch_size": 0})", "patch_size"},
           {R"({"sharpen": true})", "sharpen"},
           {R"({"size": {"height": 224}})", "height"},
           {R"({"image_mean": [0.5]})", "has 1 values, expected 3"},
           {R"({"image_std": [1, 0, 1]})", "above 0"},
           {R"({"min_pixels": 100, "max_pixels": 50})", "min_pixels"}}) {
    INFO(text);
    CHECK_THROWS_WITH(options_of(text), Contains(word));
  }
  CHECK_THROWS_WITH(options_of("{}", "other.json"), Contains("preprocessor_config.json"));
  ProcessorOptions other;
  other.max_pixels -= 1;
  CHECK(other.fingerprint() != ProcessorOptions().fingerprint());
}

TEST_CASE("sizes that are no multiples, and ratios above 200, are refused") {
  CHECK_THROWS_WITH(patch_grid({56, 57}, {}), Contains("multiples of 28"));
  CHECK_THROWS_WITH(smart_resize({1, 201}, {}), Contains("ratio of at most 200"));
  CHECK_THROWS_WITH(smart_resize({0, 5}, {}), Contains("at least 1"));
  CHECK(smart_resize({42, 70}, {}) == ImageSize{56, 56});
  CHECK(smart_resize({98, 126}, {}) == ImageSize{112, 112});
}

}  // namespace
}  // namespace ringside::engine
