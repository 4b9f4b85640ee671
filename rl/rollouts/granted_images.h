// Images of a step's rollouts: which ones their prompts have, and the pixels of these and of those
// in their conversations. Every rank of the trainer reads the prompts for their images; those of
// conversations come with the rollouts. Torch-free.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/data/conversation_images.h"
#include "rl/data/group_prompts.h"
#include "rl/data/image_fields.h"
#include "rl/data/image_prompts.h"
#include "rl/data/record_pixels.h"
#include "rl/rollouts/sample_images.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// Thread safety: none.
class GrantedImages {
 public:
  // Of data.train, for a model that takes images. Workers may bring their own prompts: data.train
  // is then empty, and no prompt has an image. With rollout.reward worker, workers have tools of
  // their own, which may return images, so the prompts may all be text, too. Blocks: until the
  // prompts and the files of their images are read. Throws: std::runtime_error for the first
  // problem of the prompts, and when none has an image.
  explicit GrantedImages(const Config& config);

  // Throws: std::invalid_argument naming the rollout when its prompt's ids do not have the images
  // of its group's prompt.
  StepImages of(std::span<const bridge::Rollout> rollouts);
  // Holds the images of a step's conversations, in place of those of the step before.
  // Throws: as ConversationPixels::hold.
  void hold(std::vector<bridge::Image> images);

  // The first images of a rollout for a log, those of its prompt before those of its conversation,
  // as the model gets them; at most kMostLoggedImages.
  // Blocks: while they are read and decoded. Throws: as pixels(), and as image_uri().
  std::vector<LoggedImage> logged(const bridge::Rollout& rollout) const;

  const ImageRules& rules() const { return rules_; }
  // The pixels of an image by its hash. Thread-safe, and may outlive this.
  // Throws, when it is called: as any_of().
  std::function<RecordPixels::Image(const std::string& hash)> pixels() const;

 private:
  void read_prompts(const Config& config);

  std::vector<std::vector<PromptImage>> images_;  // by prompt
  ImageRules rules_;
  std::unique_ptr<GroupPrompts> order_;   // null: the prompts are the workers' own
  std::shared_ptr<RecordPixels> pixels_;  // null: no prompt has an image
  std::shared_ptr<ConversationPixels> conversations_ = std::make_shared<ConversationPixels>();
};

}  // namespace ringside::rl
