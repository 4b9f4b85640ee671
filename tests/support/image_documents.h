// Documents with images of a tiny tower, and their pixels, for tests that train.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/layers/vision_config.h"
#include "engine/runner/image_encoder.h"
#include "rl/data/image_fields.h"
#include "rl/data/training_batch.h"

namespace ringside::test {

// An image of a document: where it begins, which one it is, and its sides in tokens.
struct DrawnImage {
  int64_t begin, number, height, width;
};

// The hash of image `number`: its digits after zeros.
inline std::string drawn_hash(int64_t number) {
  const std::string digits = std::to_string(number);
  return std::string(32 - digits.size(), '0') + digits;
}

// A document of `ids` whose first target is ids[first_target], with images in place of ids.
// merge 2.
inline sp::Document image_document(std::vector<int64_t> ids, int64_t first_target,
                                   const std::vector<DrawnImage>& images) {
  std::vector<rl::PlacedImage> placed;
  for (const DrawnImage& image : images) {
    for (int64_t row = 0; row < image.height * image.width; ++row) {
      ids.at(image.begin + row) = 9;
    }
    placed.push_back(
        {drawn_hash(image.number), {image.begin, {1, 2 * image.height, 2 * image.width}}});
  }
  sp::Document document = rl::make_scored_document(std::move(ids), first_target);
  rl::add_image_fields(document, placed, 2);
  return document;
}

// Documents of unequal lengths: of text alone, with an image in the middle, with two that follow
// each other, with one at the first token that is longer than most shards, and groups of two that
// share a prompt with an image, or differ in nothing but their image.
inline std::vector<sp::Document> image_documents(int64_t count) {
  const std::vector<std::vector<DrawnImage>> kinds{{},
                                                   {{3, 1, 2, 2}},
                                                   {{3, 1, 2, 2}},
                                                   {{2, 2, 1, 3}, {5, 3, 2, 1}},
                                                   {{0, 4, 3, 4}},
                                                   {{1, 5, 1, 2}},
                                                   {{1, 6, 1, 2}},
                                                   {}};
  std::vector<sp::Document> all;
  for (int64_t d = 0; d < count; ++d) {
    const auto kind = static_cast<std::size_t>(d) % kinds.size();
    std::vector<int64_t> ids{1, 2};
    for (int64_t i = 0; i < 12 + 3 * (d % 3); ++i) {
      // Those of one group begin alike.
      ids.push_back(i < 7 ? (5 * i + 1) % 19 : (7 * i + 3 * d) % 19);
    }
    const int64_t first_target = kind == 4 ? 12 : 9;
    all.push_back(image_document(std::move(ids), first_target, kinds[kind]));
  }
  return all;
}

// Pixels of drawn images for a tower of merge 2 whose rows are of one frame: numbers that follow
// from the image.
inline engine::ImageInput drawn_images(const engine::VisionConfig& vision) {
  engine::ImageInput input;
  input.processor.patch = vision.patch;
  input.processor.temporal_patch = vision.temporal_patch;
  input.processor.merge = vision.merge;
  input.kept = std::make_shared<engine::KeptRows>();
  const auto grid_of = [](uint64_t number) -> engine::PatchGrid {
    switch (number) {
      case 1:
        return {1, 4, 4};
      case 2:
        return {1, 2, 6};
      case 3:
        return {1, 4, 2};
      case 4:
        return {1, 6, 8};
      default:
        return {1, 2, 4};
    }
  };
  input.pixels = [grid_of, patch = vision.patch](const sp::ImageId& id) {
    auto image = std::make_shared<engine::ProcessedImage>();
    // Hexadecimal digits that are decimal ones too.
    image->grid = grid_of(id.low);
    image->image.height = image->grid.height * patch;
    image->image.width = image->grid.width * patch;
    const int64_t bytes = 3 * image->image.height * image->image.width;
    for (int64_t i = 0; i < bytes; ++i) {
      image->image.rgb.push_back(
          static_cast<uint8_t>((i * (17 + 4 * static_cast<int64_t>(id.low)) + 40) % 251));
    }
    return image;
  };
  return input;
}

}  // namespace ringside::test
