#include "rl/rollouts/granted_images.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "engine/tokenizer/tokenizer.h"
#include "rl/data/prompt_set.h"
#include "rl/rewards/weighted_rewards.h"

namespace ringside::rl {

GrantedImages::GrantedImages(const Config& config) : rules_(read_image_rules(config)) {
  if (!config.data.train.empty()) {
    read_prompts(config);
  }
}

void GrantedImages::read_prompts(const Config& config) {
  const auto tokenizer =
      engine::Tokenizer::load(std::filesystem::path(config.model.path) / "tokenizer.json");
  PromptSet set = load_prompt_set(config.data.train, config, tokenizer);
  if (!set.images && !parse_rewards(config.rollout.reward).empty()) {
    throw std::runtime_error("data.image_key is " + config.data.image_key + ", but no prompt of " +
                             config.data.train +
                             " has an image; expected \"\" for text alone, or rollout.reward "
                             "worker for workers whose tools return images");
  }
  order_ = std::make_unique<GroupPrompts>(set.parts, config);
  if (set.images) {
    pixels_ = prompt_pixels(config.data.train, config.data, set.prompts, rules_);
  }
  for (Prompt& prompt : set.prompts) {
    images_.push_back(std::move(prompt.images));
  }
}

StepImages GrantedImages::of(std::span<const bridge::Rollout> rollouts) {
  StepImages step;
  step.merge = rules_.processor.merge;
  step.patch = rules_.processor.patch;
  if (!pixels_) {
    return step;
  }
  for (const bridge::Rollout& rollout : rollouts) {
    const std::vector<PromptImage>& images = images_[order_->at(rollout.group_id)];
    std::vector<PlacedImage>& placed = step.of_rollout.emplace_back();
    try {
      for (const engine::ImageSpan& span : expanded_spans(rollout.prompt_ids, images, rules_)) {
        placed.push_back({images[placed.size()].hash, span});
      }
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("rollout " + rollout.rollout_id + " of group " +
                                  std::to_string(rollout.group_id) + ": " + error.what());
    }
  }
  return step;
}

std::vector<LoggedImage> GrantedImages::logged(const bridge::Rollout& rollout) const {
  std::vector<std::pair<std::string, std::string>> images;  // name and hash
  if (pixels_) {
    for (const PromptImage& image : images_[order_->at(rollout.group_id)]) {
      images.emplace_back(image.name, image.hash);
    }
  }
  for (const bridge::ConversationImage& image : rollout.images) {
    images.emplace_back("at token " + std::to_string(image.begin), image.hash);
  }
  images.resize(std::min(images.size(), kMostLoggedImages));
  const auto find = pixels();
  std::vector<LoggedImage> all;
  for (const auto& [name, hash] : images) {
    all.push_back({name, image_uri(find(hash)->image)});
  }
  return all;
}

void GrantedImages::hold(std::vector<bridge::Image> images) {
  conversations_->hold(std::move(images), rules_.processor.patch);
}

std::function<RecordPixels::Image(const std::string& hash)> GrantedImages::pixels() const {
  std::vector<std::shared_ptr<RecordPixels>> records;
  if (pixels_) {
    records.push_back(pixels_);
  }
  return [conversations = conversations_,
          of_prompt = any_of(std::move(records))](const std::string& hash) {
    RecordPixels::Image image = conversations->find(hash);
    return image ? image : of_prompt(hash);
  };
}

}  // namespace ringside::rl
