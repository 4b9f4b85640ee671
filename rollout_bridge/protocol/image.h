// Images of conversations, such as a screenshot that a tool returned, and what they are known by.
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "rollout_bridge/base/buffer.h"
#include "rollout_bridge/base/limits.h"
#include "rollout_bridge/base/result.h"

namespace ringside::bridge {

// What an image is known by: XXH3-128 of the text "HEIGHT x WIDTH:" and the pixels, 32 lower-case
// hex digits. The same as engine::ProcessedImage::hash.
std::string image_hash(int64_t height, int64_t width, std::span<const std::byte> rgb);

// Whether a text is 32 lower-case hex digits that are not all 0.
bool is_image_hash(const std::string& text);

// Which image an IMAGE brings.
struct ImageHead {
  std::string hash;
  int64_t height = 0;  // in pixels
  int64_t width = 0;
  uint64_t bytes() const {
    return 3 * static_cast<uint64_t>(height) * static_cast<uint64_t>(width);
  }
  bool operator==(const ImageHead&) const = default;
};

// An image with its pixels: [height, width, 3] bytes of RGB.
struct Image {
  ImageHead head;
  Buffer rgb;
};

// Checks the hash's form, the sides, and that the pixels are within the limit.
// Errors: kInvalidField, kLimit.
Status validate(const ImageHead& head, const Limits& limits = {});

// The image of these pixels. Throws: std::invalid_argument unless there are height x width x 3.
Image make_image(int64_t height, int64_t width, Buffer rgb);

}  // namespace ringside::bridge
