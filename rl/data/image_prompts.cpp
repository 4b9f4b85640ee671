#include "rl/data/image_prompts.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>

#include "engine/json/json_object.h"

namespace ringside::rl {
namespace {

// Types whose processor is Qwen2VLImageProcessor and whose placeholders are expanded in this way.
constexpr std::array<std::string_view, 6> kTypes = {"qwen2_vl",     "qwen2_5_vl", "qwen3_vl",
                                                    "qwen3_vl_moe", "qwen3_5",    "qwen3_5_moe"};

}  // namespace

std::string ImageRules::fingerprint() const {
  return "placeholder " + std::to_string(image_token_id) + ", " + processor.fingerprint();
}

ImageRules read_image_rules(const Config& config) {
  const std::filesystem::path model = config.model.path;
  const auto json = engine::JsonObject::read(model / "config.json");
  const std::string type = json.text("model_type").value_or("");
  if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) {
    json.fail("model_type", "is " + type +
                                ", which takes no images here; expected qwen2_vl, qwen2_5_vl, "
                                "qwen3_vl or qwen3_5");
  }
  ImageRules rules;
  rules.image_token_id = json.require_at_least(0, "image_token_id");
  rules.processor = engine::read_processor_options(model);
  if (config.data.max_image_pixels > 0) {
    rules.processor.max_pixels = config.data.max_image_pixels;
  }
  if (rules.processor.max_pixels < rules.processor.min_pixels) {
    throw std::runtime_error("data.max_image_pixels is " +
                             std::to_string(config.data.max_image_pixels) +
                             ", expected at least the processor's min_pixels, " +
                             std::to_string(rules.processor.min_pixels));
  }
  return rules;
}

ImageTokens image_tokens(engine::ImageSize size, const ImageRules& rules) {
  ImageTokens out;
  out.resized = engine::smart_resize(size, rules.processor);
  out.grid = engine::patch_grid(out.resized, rules.processor);
  out.tokens = out.grid.tokens(rules.processor.merge);
  return out;
}

ExpandedPrompt expand_placeholders(std::span<const int64_t> ids,
                                   std::span<const PromptImage> images, const ImageRules& rules) {
  const auto places =
      static_cast<std::size_t>(std::count(ids.begin(), ids.end(), rules.image_token_id));
  if (places != images.size()) {
    throw std::invalid_argument("the prompt has " + std::to_string(images.size()) +
                                (images.size() == 1 ? " image" : " images") + ", and its text " +
                                std::to_string(places) + " of token " +
                                std::to_string(rules.image_token_id) +
                                ", the placeholder of an image; expected one for each");
  }
  ExpandedPrompt out;
  for (const int64_t id : ids) {
    if (id != rules.image_token_id) {
      out.ids.push_back(id);
      continue;
    }
    const ImageTokens image = image_tokens(images[out.images.size()].size, rules);
    out.images.push_back({static_cast<int64_t>(out.ids.size()), image.grid});
    out.ids.insert(out.ids.end(), static_cast<std::size_t>(image.tokens), id);
  }
  return out;
}

std::vector<engine::ImageSpan> expanded_spans(std::span<const int64_t> ids,
                                              std::span<const PromptImage> images,
                                              const ImageRules& rules) {
  std::vector<engine::ImageSpan> spans;
  auto next = ids.begin();
  for (const PromptImage& image : images) {
    const ImageTokens tokens = image_tokens(image.size, rules);
    next = std::find(next, ids.end(), rules.image_token_id);
    const auto end = std::find_if(next, next + std::min(ids.end() - next, tokens.tokens),
                                  [&](int64_t id) { return id != rules.image_token_id; });
    if (end - next != tokens.tokens) {
      throw std::invalid_argument("image " + image.name + " has " + std::to_string(tokens.tokens) +
                                  " tokens, of which the ids have " + std::to_string(end - next));
    }
    spans.push_back({next - ids.begin(), tokens.grid});
    next = end;
  }
  if (const auto more = std::find(next, ids.end(), rules.image_token_id); more != ids.end()) {
    throw std::invalid_argument("token " + std::to_string(more - ids.begin()) +
                                " is the placeholder of an image, and belongs to none of the " +
                                std::to_string(images.size()) + " images");
  }
  return spans;
}

}  // namespace ringside::rl
