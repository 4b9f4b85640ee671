#include "engine/images/positions.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ringside::engine {
namespace {

void check_grid(const PatchGrid& grid, int64_t merge) {
  if (merge < 1 || grid.t != 1 || grid.height < merge || grid.width < merge ||
      grid.height % merge != 0 || grid.width % merge != 0) {
    throw std::invalid_argument(
        "a grid of " + std::to_string(grid.t) + " x " + std::to_string(grid.height) + " x " +
        std::to_string(grid.width) +
        " patches, expected one frame and multiples of merge = " + std::to_string(merge));
  }
}

void add(TokenPositions& to, int64_t time, int64_t height, int64_t width) {
  to.time.push_back(time);
  to.height.push_back(height);
  to.width.push_back(width);
}

}  // namespace

TokenPositions token_positions(int64_t tokens, std::span<const ImageSpan> images, int64_t merge) {
  TokenPositions out;
  int64_t next = 0;  // position of the next text token
  const auto add_text = [&](int64_t until) {
    for (auto at = static_cast<int64_t>(out.time.size()); at < until; ++at, ++next) {
      add(out, next, next, next);
    }
  };
  for (const ImageSpan& image : images) {
    check_grid(image.grid, merge);
    const auto at = static_cast<int64_t>(out.time.size());
    if (image.begin < at || image.begin > tokens ||
        image.grid.tokens(merge) > tokens - image.begin) {
      throw std::invalid_argument("an image of " + std::to_string(image.grid.tokens(merge)) +
                                  " tokens at token " + std::to_string(image.begin) +
                                  ", expected a place between token " + std::to_string(at) +
                                  " and the end of " + std::to_string(tokens));
    }
    add_text(image.begin);
    const int64_t height = image.grid.height / merge, width = image.grid.width / merge;
    for (int64_t i = 0; i < height * width; ++i) {
      add(out, next, next + i / width, next + i % width);
    }
    next += std::max(height, width);
  }
  add_text(tokens);
  return out;
}

}  // namespace ringside::engine
