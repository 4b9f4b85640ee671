// Weights of a few numbers: their content is one of them.
#pragma once

#include <cstring>
#include <memory>

#include "rollout_bridge/weights/snapshot.h"

namespace ringside::simulator {

inline constexpr const char* kRunId = "simulated";
inline constexpr const char* kHeldOut = "held-out prompts";

inline bridge::Buffer numbers(std::vector<int64_t> values) {
  return bridge::Buffer::own(std::move(values));
}

// `content` below 2^31: it becomes a token.
inline std::vector<bridge::NamedBuffer> tensors_of(int64_t content) {
  return {{"content", "I64", {1}, numbers({content})},
          {"layer", "I64", {12}, numbers({1, 2, 3, 4, 5, 6, 7, 8, 9, content, 11, 12})},
          {"frozen", "I64", {2}, numbers({3, 4})}};
}

inline std::shared_ptr<const bridge::WeightSnapshot> snapshot_of(int64_t trainer_term,
                                                                 int64_t version, int64_t content) {
  return bridge::make_snapshot(kRunId, trainer_term, version, tensors_of(content));
}

inline int64_t content_of(const bridge::WeightSnapshot& snapshot) {
  int64_t content = -1;
  std::memcpy(&content, snapshot.tensors.at(0).bytes.data(), sizeof content);
  return content;
}

// Hashed anew from what a worker installed.
inline std::string root_of(int64_t content) { return bridge::root_hash_of(tensors_of(content)); }

}  // namespace ringside::simulator
