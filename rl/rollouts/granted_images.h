// Images of granted groups: which ones the prompts of a step's rollouts have, and their pixels.
// Every rank of the trainer reads the prompts for them. Torch-free.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/data/data_order.h"
#include "rl/data/image_fields.h"
#include "rl/data/image_prompts.h"
#include "rl/data/record_pixels.h"
#include "rl/rollouts/sample_images.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// Thread safety: none.
class GrantedImages {
 public:
  // Of data.train, for a model that takes images.
  // Blocks: until the prompts and the files of their images are read.
  // Throws: std::runtime_error for the first problem of the prompts, and when none has an image.
  explicit GrantedImages(const Config& config);

  // Throws: std::invalid_argument naming the rollout when its prompt's ids do not have the images
  // of its group's prompt.
  StepImages of(std::span<const bridge::Rollout> rollouts);

  // The first images of a group's prompt for a log, as the model gets them, at most
  // kMostLoggedImages.
  // Blocks: while they are read and decoded. Throws: as RecordPixels, and as image_uri().
  std::vector<LoggedImage> logged(int64_t group_id);

  const ImageRules& rules() const { return rules_; }
  // Thread-safe, and may outlive this.
  std::shared_ptr<RecordPixels> pixels() const { return pixels_; }

 private:
  std::vector<std::vector<PromptImage>> images_;  // by prompt
  ImageRules rules_;
  std::unique_ptr<DataOrder> order_;
  std::shared_ptr<RecordPixels> pixels_;
};

}  // namespace ringside::rl
