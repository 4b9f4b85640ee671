// Which prompt a granted group is of. Torch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "rl/config/config.h"
#include "rl/data/data_order.h"

namespace ringside::rl {

// A group id is slot + number * kRoundStride. The stride exceeds the slots of any run, so a group
// id determines both. The number is the round in which the slot is tried, or with data.curriculum
// the prompt.
inline constexpr int64_t kRoundStride = int64_t{1} << 40;

// Whether the trainer chooses the prompts of a step by their measured difficulty.
inline bool has_curriculum(const DataConfig& data) { return data.curriculum.mode != "none"; }

// The prompt of each group, the same on the trainer and on every worker: item g of the endless data
// order DataOrder(parts, seed, data.shuffle), or with a curriculum the prompt that the id names.
// Thread safety: none.
class GroupPrompts {
 public:
  // Throws: as DataOrder.
  GroupPrompts(const std::vector<OrderPart>& parts, const Config& config);
  // The index of the group's prompt, for any group_id of at least 0.
  int64_t at(int64_t group_id);

 private:
  bool named_by_id_;
  int64_t size_ = 0;
  DataOrder order_;
};

}  // namespace ringside::rl
