#include "rl/data/conversation_images.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

namespace ringside::rl {
namespace {

engine::PatchGrid grid_of(const bridge::ImageHead& image, int64_t patch) {
  if (patch < 1 || image.height % patch != 0 || image.width % patch != 0) {
    throw std::invalid_argument("image " + image.hash + " of " + std::to_string(image.height) +
                                " x " + std::to_string(image.width) +
                                " pixels, expected whole patches of " + std::to_string(patch));
  }
  return {1, image.height / patch, image.width / patch};
}

}  // namespace

bool have_conversation_images(std::span<const bridge::Rollout> rollouts) {
  return std::ranges::any_of(rollouts, [](const auto& rollout) { return !rollout.images.empty(); });
}

std::vector<PlacedImage> document_images(const bridge::Rollout& rollout,
                                         const bridge::BranchPath& path,
                                         std::span<const PlacedImage> of_prompt, int64_t patch) {
  std::vector<PlacedImage> placed(of_prompt.begin(), of_prompt.end());
  auto at = static_cast<int64_t>(rollout.prompt_ids.size());  // in the document
  for (const bridge::TokenRange& range : path.ranges) {
    for (const bridge::ConversationImage& image : rollout.images) {
      if (image.begin >= range.begin && image.end <= range.end) {
        placed.push_back(
            {image.hash, {at + image.begin - range.begin, grid_of(image.head(), patch)}});
      }
    }
    at += range.end - range.begin;
  }
  return placed;
}

void ConversationPixels::hold(std::vector<bridge::Image> images, int64_t patch) {
  std::map<std::string, Image, std::less<>> held;
  for (bridge::Image& image : images) {
    auto processed = std::make_shared<engine::ProcessedImage>();
    processed->grid = grid_of(image.head, patch);
    processed->hash = image.head.hash;
    processed->image.height = image.head.height;
    processed->image.width = image.head.width;
    const auto* rgb = reinterpret_cast<const uint8_t*>(image.rgb.bytes.data());
    processed->image.rgb.assign(rgb, rgb + image.rgb.bytes.size());
    image.rgb = {};  // one copy of the pixels is enough
    held.emplace(image.head.hash, std::move(processed));
  }
  const std::lock_guard lock(mutex_);
  images_ = std::move(held);
}

ConversationPixels::Image ConversationPixels::find(const std::string& hash) const {
  const std::lock_guard lock(mutex_);
  const auto found = images_.find(hash);
  return found == images_.end() ? nullptr : found->second;
}

}  // namespace ringside::rl
