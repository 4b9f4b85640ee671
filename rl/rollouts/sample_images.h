// Images of logged samples, small enough to lie in a line of samples.jsonl. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/images/rgb_image.h"

namespace ringside::rl {

struct LoggedImage {
  std::string name;  // of its file, or its place in the record
  std::string uri;   // "data:image/jpeg;base64,..."
};

// Images of a sample that are logged. The others' names are in its prompt's record.
inline constexpr std::size_t kMostLoggedImages = 4;
// The longer side of one, in pixels, which makes a few KiB of it.
inline constexpr int64_t kLoggedImageSide = 224;

// The image, shrunk to kLoggedImageSide, as a JPEG in a data URI.
// Throws: as engine::write_jpeg().
std::string image_uri(const engine::RgbImage& image);

// The ids as text with special tokens, in which several placeholders of an image in a row are
// written as "<|image_pad|> x 196". decode: of ids.
template <class Decode>
std::string text_with_short_images(std::span<const int64_t> ids, int64_t placeholder,
                                   const Decode& decode) {
  std::string text;
  for (std::size_t begin = 0; begin < ids.size();) {
    std::size_t end = begin;
    const bool is_image = ids[begin] == placeholder;
    while (end < ids.size() && (ids[end] == placeholder) == is_image) {
      ++end;
    }
    const auto part = ids.subspan(begin, end - begin);
    text += decode(is_image ? part.first(1) : part);
    if (is_image && part.size() > 1) {
      text += " x " + std::to_string(part.size());
    }
    begin = end;
  }
  return text;
}

}  // namespace ringside::rl
