// Images in the token ids of a prompt: one placeholder of the text becomes as many ids as the image
// has tokens. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/images/positions.h"
#include "engine/images/processor_options.h"
#include "rl/config/config.h"
#include "rl/data/record_images.h"

namespace ringside::rl {

// What a model says of images.
struct ImageRules {
  engine::ProcessorOptions processor;
  int64_t image_token_id = 0;  // of the placeholder

  // Equal for rules that give equal ids and pixels.
  std::string fingerprint() const;
};

// The rules of the model at model.path, with data.max_image_pixels in the place of the processor's
// max_pixels where it is set. Reads config.json and the processor's file.
// Throws: std::runtime_error naming the file when the model takes no images, or images of another
// kind than Qwen's; as read_processor_options; for a limit below the processor's min_pixels.
ImageRules read_image_rules(const Config& config);

// A size as it comes into the model.
struct ImageTokens {
  engine::ImageSize resized;
  engine::PatchGrid grid;
  int64_t tokens = 0;
};
// Throws: as engine::smart_resize.
ImageTokens image_tokens(engine::ImageSize size, const ImageRules& rules);

// Token ids with expanded placeholders.
struct ExpandedPrompt {
  std::vector<int64_t> ids;
  std::vector<engine::ImageSpan> images;
};

// The n-th placeholder of `ids` is the n-th image, and becomes its tokens.
// Throws: std::invalid_argument when there are more or fewer placeholders than images.
ExpandedPrompt expand_placeholders(std::span<const int64_t> ids,
                                   std::span<const PromptImage> images, const ImageRules& rules);

// Where the images are in ids that expand_placeholders() made.
// Throws: std::invalid_argument unless each image has its tokens, in order, and no other id is the
// placeholder's.
std::vector<engine::ImageSpan> expanded_spans(std::span<const int64_t> ids,
                                              std::span<const PromptImage> images,
                                              const ImageRules& rules);

}  // namespace ringside::rl
