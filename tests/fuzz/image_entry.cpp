#include <stdexcept>
#include <string>

#include "engine/images/image_decoder.h"
#include "tests/fuzz/entries.h"

namespace ringside::bridge::fuzz {

void image(std::span<const uint8_t> bytes) {
  const engine::ImageLimits limits{.file_bytes = 1 << 20, .pixels = 1 << 18};
  try {
    const engine::RgbImage found = engine::decode_image(bytes, limits);
    require(found.height >= 1 && found.width >= 1 && found.height * found.width <= limits.pixels);
    require(found.rgb.size() == static_cast<std::size_t>(3 * found.height * found.width));
    require(engine::image_size(bytes, limits) == engine::ImageSize{found.height, found.width});
    require(engine::decode_image(bytes, limits) == found);
  } catch (const std::runtime_error& error) {
    require(std::string(error.what()).starts_with("the image "));
  }
}

}  // namespace ringside::bridge::fuzz
