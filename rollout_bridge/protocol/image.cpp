#include "rollout_bridge/protocol/image.h"

#include <algorithm>
#include <stdexcept>

#include "rollout_bridge/base/content_hash.h"

namespace ringside::bridge {
namespace {

constexpr std::size_t kHashDigits = 32;

std::string size_text(int64_t height, int64_t width) {
  return std::to_string(height) + " x " + std::to_string(width);
}

}  // namespace

std::string image_hash(int64_t height, int64_t width, std::span<const std::byte> rgb) {
  const std::string size = size_text(height, width) + ":";
  Hash128 hash;
  hash.update(std::as_bytes(std::span(size)));
  hash.update(rgb);
  return hash.hex();
}

bool is_image_hash(const std::string& text) {
  return text.size() == kHashDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos &&
         text.find_first_not_of('0') != std::string::npos;
}

Status validate(const ImageHead& head, const Limits& limits) {
  if (!is_image_hash(head.hash)) {
    return Error{
        Reason::kInvalidField,
        "the hash of an image has " + std::to_string(head.hash.size()) +
            " bytes or is no number, expected 32 lower-case hex digits that are not all 0"};
  }
  const auto longest = static_cast<int64_t>(limits.max_image_side);
  if (head.height < 1 || head.width < 1 || head.height > longest || head.width > longest) {
    return Error{Reason::kInvalidField,
                 "image " + head.hash + " of " + size_text(head.height, head.width) +
                     " pixels, expected sides of 1 to " + std::to_string(longest)};
  }
  if (head.bytes() > limits.max_image_bytes) {
    return Error{Reason::kLimit, "image " + head.hash + " of " +
                                     size_text(head.height, head.width) + " pixels has " +
                                     std::to_string(head.bytes()) + " bytes, limit " +
                                     std::to_string(limits.max_image_bytes)};
  }
  return Success{};
}

Image make_image(int64_t height, int64_t width, Buffer rgb) {
  ImageHead head{image_hash(height, width, rgb.bytes), height, width};
  if (height < 1 || width < 1 || head.bytes() != rgb.bytes.size()) {
    throw std::invalid_argument("an image of " + size_text(height, width) + " pixels with " +
                                std::to_string(rgb.bytes.size()) +
                                " bytes, expected 3 for each pixel");
  }
  return {std::move(head), std::move(rgb)};
}

}  // namespace ringside::bridge
