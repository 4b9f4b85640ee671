#include "rl/data/token_routes.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ringside::rl {

TokenRoutes::TokenRoutes(std::span<const bridge::Rollout> rollouts) {
  const bridge::RoutedExperts* first = nullptr;
  for (const bridge::Rollout& rollout : rollouts) {
    const bridge::RoutedExperts& routed = rollout.routed_experts;
    if (routed.empty()) {
      continue;
    }
    first = first == nullptr ? &routed : first;
    if (routed.layers != first->layers || routed.per_token != first->per_token) {
      throw std::invalid_argument("rollout " + rollout.rollout_id + " has routes of " +
                                  std::to_string(routed.layers.size()) + " layers and " +
                                  std::to_string(routed.per_token) +
                                  " experts a token, unlike the others of its step");
    }
    id_bytes_ = std::max<int64_t>(id_bytes_, routed.id_bytes);
    for (std::size_t i = 0; i * routed.id_bytes < routed.ids.size(); ++i) {
      experts_ = std::max<int64_t>(experts_, routed.id(i) + 1);
    }
  }
  if (first != nullptr) {
    layers_ = static_cast<int64_t>(first->layers.size());
    per_token_ = first->per_token;
  }
}

void TokenRoutes::append_id(std::vector<uint8_t>& rows, int64_t id) const {
  rows.push_back(static_cast<uint8_t>(id));
  if (id_bytes_ == 2) {
    rows.push_back(static_cast<uint8_t>(id >> 8));
  }
}

void TokenRoutes::append(std::vector<uint8_t>& rows, const bridge::RoutedExperts& routed,
                         int64_t begin, int64_t end) const {
  if (routed.id_bytes == id_bytes_) {
    const auto bytes = static_cast<int64_t>(routed.row_bytes());
    rows.insert(rows.end(), routed.ids.begin() + begin * bytes, routed.ids.begin() + end * bytes);
    return;
  }
  const int64_t ids = layers_ * per_token_;
  for (int64_t i = begin * ids; i < end * ids; ++i) {
    append_id(rows, routed.id(i));
  }
}

// The experts in turn, so that none gets more than its part.
void TokenRoutes::append_made_up(std::vector<uint8_t>& rows, int64_t begin, int64_t end) const {
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t i = 0; i < layers_ * per_token_; ++i) {
      append_id(rows, (token * per_token_ + i % per_token_) % experts_);
    }
  }
}

sp::TokenField TokenRoutes::field(const bridge::Rollout& rollout,
                                  const bridge::BranchPath& path) const {
  sp::TokenField field{kRoutesField, id_bytes_ == 2 ? sp::FieldType::kInt16 : sp::FieldType::kUInt8,
                       layers_ * per_token_};
  const auto prompt = static_cast<int64_t>(rollout.prompt_ids.size());
  std::vector<bridge::TokenRange> parts{{0, prompt}};
  for (const bridge::TokenRange& range : path.ranges) {
    parts.push_back({prompt + range.begin, prompt + range.end});
  }
  std::erase_if(parts, [](const bridge::TokenRange& part) { return part.begin == part.end; });
  --parts.back().end;
  for (const bridge::TokenRange& part : parts) {
    rollout.routed_experts.empty()
        ? append_made_up(field.bytes, part.begin, part.end)
        : append(field.bytes, rollout.routed_experts, part.begin, part.end);
  }
  return field;
}

}  // namespace ringside::rl
