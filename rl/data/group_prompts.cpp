#include "rl/data/group_prompts.h"

namespace ringside::rl {

GroupPrompts::GroupPrompts(const std::vector<OrderPart>& parts, const Config& config)
    : named_by_id_(has_curriculum(config.data)),
      order_(parts, static_cast<uint64_t>(config.seed), config.data.shuffle) {
  for (const OrderPart& part : parts) {
    size_ += part.size;
  }
}

int64_t GroupPrompts::at(int64_t group_id) {
  return named_by_id_ ? group_id / kRoundStride % size_ : order_.at(group_id);
}

}  // namespace ringside::rl
