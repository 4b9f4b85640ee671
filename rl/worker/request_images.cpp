#include "rl/worker/request_images.h"

#include <utility>

#include "rollout_bridge/base/content_hash.h"

namespace ringside::rl {

RequestImages::RequestImages(const DataConfig& config, ImageRules rules)
    : config_(config), rules_(std::move(rules)) {
  const std::string rules_text = rules_.fingerprint();
  rules_hash_ = bridge::hash128(std::as_bytes(std::span(rules_text)));
}

void RequestImages::take(const std::string& files, std::span<const Prompt> prompts) {
  for (const Prompt& prompt : prompts) {
    if (!prompt.images.empty()) {
      pixels_.push_back(prompt_pixels(files, config_, prompts, rules_));
      return;
    }
  }
}

bridge::RequestImage RequestImages::image(const std::string& hash) {
  Made& made = made_[hash];
  auto patches = made.patches.lock();
  if (!patches) {
    const RecordPixels::Image pixels = any_of(pixels_)(hash);
    patches = std::make_shared<const std::vector<float>>(
        engine::patch_rows(pixels->image, rules_.processor));
    // Rows are a function of the pixels and the rules.
    made = {pixels->hash + "-" + rules_hash_, pixels->grid, patches};
  }
  bridge::RequestImage image;
  image.id = made.id;
  image.grid_height = made.grid.height;
  image.grid_width = made.grid.width;
  image.patches = std::move(patches);
  return image;
}

std::vector<bridge::RequestImage> RequestImages::of(const Prompt& prompt,
                                                    std::span<const int64_t> prompt_ids) {
  std::vector<bridge::RequestImage> images;
  if (prompt.images.empty()) {
    return images;
  }
  for (const engine::ImageSpan& span : expanded_spans(prompt_ids, prompt.images, rules_)) {
    images.push_back(image(prompt.images[images.size()].hash));
    images.back().begin = span.begin;
    images.back().tokens = span.grid.tokens(rules_.processor.merge);
  }
  return images;
}

}  // namespace ringside::rl
