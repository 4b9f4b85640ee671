// Which records of the journal's file are needed: those of rollouts whose groups are not consumed,
// and of the images that such rollouts name.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "rollout_bridge/protocol/schema.h"

namespace ringside::bridge {

// Place of a record in the file, with its head.
struct Extent {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class LivingRecords {
 public:
  // An image that no rollout names yet: its record is dead.
  void add_image(const std::string& hash, const Extent& extent);
  bool has_image(const std::string& hash) const { return images_.contains(hash); }
  // Throws: std::out_of_range for one that is not here.
  const Extent& image(const std::string& hash) const { return images_.at(hash).extent; }
  // Keeps images alive for a rollout that is not here yet, and the reverse. Each hash once.
  // Throws: std::out_of_range for an image that is not here.
  void hold(const std::vector<std::string>& images);
  void let_go(const std::vector<std::string>& images);

  // A rollout whose images are held.
  void add_rollout(int64_t group_id, const Extent& extent, std::vector<std::string> images);
  // The rollouts of groups [begin, end) are not needed any more, nor the images that no other
  // names.
  void drop_groups(int64_t begin, int64_t end);
  // The same of one rollout. Throws: std::out_of_range for one that is not here.
  void drop_rollout(int64_t group_id, uint64_t offset);
  // A record that nobody needs.
  void add_dead(const Extent& extent) { dead_bytes_ += extent.bytes; }
  uint64_t dead_bytes() const { return dead_bytes_; }

  // The same records at their new places: `move` copies one, images before the rollouts. What is
  // dead is left out.
  LivingRecords moved(const std::function<Extent(const Extent&)>& move) const;

 private:
  struct LivingRollout {
    Extent extent;
    std::vector<std::string> images;
  };
  struct LivingImage {
    Extent extent;
    int64_t rollouts = 0;  // that name it; 0: the record is dead
  };

  void bury(const LivingRollout& rollout);

  std::map<int64_t, std::vector<LivingRollout>> rollouts_;  // by group
  std::map<std::string, LivingImage, std::less<>> images_;  // by hash
  uint64_t dead_bytes_ = 0;
};

// The hashes of a rollout's images, each once.
std::vector<std::string> image_hashes(const Rollout& rollout);

}  // namespace ringside::bridge
