// Images of documents: the positions of their tokens, and which row of which image each token is,
// as fields that are packed and sharded with the ids. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/images/positions.h"
#include "sp/batch/document.h"

namespace ringside::rl {

// An image of a document.
struct PlacedImage {
  std::string hash;  // of its file, as PromptImage::hash; of a conversation's image, of its pixels
  engine::ImageSpan span;
};

// Images of a step's rollouts.
struct StepImages {
  // Of each rollout those of its prompt, in order; or nothing, when no rollout has one.
  std::vector<std::vector<PlacedImage>> of_rollout;
  int64_t merge = 2;  // patches a side of one token
  int64_t patch = 0;  // pixels a side of one patch; 0: conversations may have no images

  // Whether a rollout has an image.
  bool any() const;
};

// The hash that an id was made of.
std::string image_hash(const sp::ImageId& id);

// The id of an image. Throws: std::invalid_argument unless the hash has 32 hex digits, not all 0.
sp::ImageId image_id(const std::string& hash);

// Adds the images, and the fields kPositionsField, kImageField and kImageRowField of all tokens.
// All documents of a step get them if one has an image. The spans count the document's tokens and
// one more, since the last token of a text is only a target and may be cut off.
// Throws: std::invalid_argument as image_id() and engine::token_positions().
void add_image_fields(sp::Document& document, std::span<const PlacedImage> images, int64_t merge);

}  // namespace ringside::rl
