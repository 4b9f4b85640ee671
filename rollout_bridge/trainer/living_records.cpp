#include "rollout_bridge/trainer/living_records.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ringside::bridge {

void LivingRecords::add_image(const std::string& hash, const Extent& extent) {
  dead_bytes_ += extent.bytes;
  images_.emplace(hash, LivingImage{extent});
}

void LivingRecords::hold(const std::vector<std::string>& images) {
  for (const std::string& hash : images) {
    LivingImage& image = images_.at(hash);
    if (image.rollouts++ == 0) {
      dead_bytes_ -= image.extent.bytes;
    }
  }
}

void LivingRecords::let_go(const std::vector<std::string>& images) {
  for (const std::string& hash : images) {
    LivingImage& image = images_.at(hash);
    if (--image.rollouts == 0) {
      dead_bytes_ += image.extent.bytes;
    }
  }
}

void LivingRecords::add_rollout(int64_t group_id, const Extent& extent,
                                std::vector<std::string> images) {
  rollouts_[group_id].push_back({extent, std::move(images)});
}

void LivingRecords::bury(const LivingRollout& rollout) {
  dead_bytes_ += rollout.extent.bytes;
  let_go(rollout.images);
}

void LivingRecords::drop_groups(int64_t begin, int64_t end) {
  const auto first = rollouts_.lower_bound(begin);
  const auto last = rollouts_.lower_bound(end);
  for (auto it = first; it != last; ++it) {
    for (const LivingRollout& rollout : it->second) {
      bury(rollout);
    }
  }
  rollouts_.erase(first, last);
}

void LivingRecords::drop_rollout(int64_t group_id, uint64_t offset) {
  std::vector<LivingRollout>& rollouts = rollouts_.at(group_id);
  const auto found =
      std::find_if(rollouts.begin(), rollouts.end(),
                   [&](const LivingRollout& rollout) { return rollout.extent.offset == offset; });
  if (found == rollouts.end()) {
    throw std::out_of_range("no record of group " + std::to_string(group_id) + " at byte " +
                            std::to_string(offset));
  }
  bury(*found);
  rollouts.erase(found);
  if (rollouts.empty()) {
    rollouts_.erase(group_id);
  }
}

LivingRecords LivingRecords::moved(const std::function<Extent(const Extent&)>& move) const {
  LivingRecords out;
  for (const auto& [hash, image] : images_) {
    if (image.rollouts > 0) {
      out.images_.emplace(hash, LivingImage{move(image.extent), image.rollouts});
    }
  }
  for (const auto& [group, rollouts] : rollouts_) {
    for (const LivingRollout& rollout : rollouts) {
      out.rollouts_[group].push_back({move(rollout.extent), rollout.images});
    }
  }
  return out;
}

std::vector<std::string> image_hashes(const Rollout& rollout) {
  std::vector<std::string> hashes;
  for (const ImageHead& head : distinct_images(rollout)) {
    hashes.push_back(head.hash);
  }
  return hashes;
}

}  // namespace ringside::bridge
