// Images that came within conversations, such as a screenshot that a tool returned: where they are
// in documents, and their pixels, which the step's rollouts brought along. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/images/image_store.h"
#include "rl/data/image_fields.h"
#include "rollout_bridge/protocol/branches.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// Whether a rollout names an image of its conversation.
bool have_conversation_images(std::span<const bridge::Rollout> rollouts);

// The images of a branch's document: first those of the prompt, then those of its conversation.
// patch: pixels a side of a patch.
// Throws: std::invalid_argument for an image of the conversation whose sides are no whole patches,
// or patch 0.
std::vector<PlacedImage> document_images(const bridge::Rollout& rollout,
                                         const bridge::BranchPath& path,
                                         std::span<const PlacedImage> of_prompt, int64_t patch);

// Pixels of the images of one step's conversations. Thread safety: safe from any thread.
class ConversationPixels {
 public:
  using Image = engine::ImageStore::Image;

  // Holds these in place of those of the step before. patch: pixels a side of a patch.
  // Throws: std::invalid_argument for sides that are no whole patches.
  void hold(std::vector<bridge::Image> images, int64_t patch);
  // Null when the step has no such image.
  Image find(const std::string& hash) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Image, std::less<>> images_;
};

}  // namespace ringside::rl
