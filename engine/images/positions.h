// Positions of three components (time, height, width) of a text with images. Integers only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/images/image_processor.h"

namespace ringside::engine {

// Where the tokens of one image stand in a document.
struct ImageSpan {
  int64_t begin = 0;  // index of its first token
  PatchGrid grid;     // its tokens: grid.tokens(merge)
};

// Positions of a document, one vector a component.
// Shape: each [tokens].
struct TokenPositions {
  std::vector<int64_t> time;
  std::vector<int64_t> height;
  std::vector<int64_t> width;

  bool operator==(const TokenPositions&) const = default;
};

// Text counts on by one in all three components. An image's tokens have the position at which it
// begins, plus their row and their column in its grid of merged patches; what follows it begins
// after the larger of the two sides. Images are known by their spans alone: a token outside of them
// is text, whatever its id, and images may follow each other directly.
// Throws: std::invalid_argument for spans that are not in order, overlap or leave the document, and
// for a grid of several frames (a video) or with sides that are no multiples of merge.
// Source: get_rope_index in transformers/models/qwen2_5_vl, qwen3_vl and qwen3_5; equal to it where
// it works.
TokenPositions token_positions(int64_t tokens, std::span<const ImageSpan> images, int64_t merge);

}  // namespace ringside::engine
