// What the tests of weights sent as changes share.
#pragma once

#include <catch2/catch.hpp>
#include <memory>

#include "rollout_bridge/weights/snapshot.h"
#include "rollout_bridge/weights/weight_receiver.h"

namespace ringside::bridge::test {

using Snapshot = std::shared_ptr<const WeightSnapshot>;

// Stages a manifest from what the trainer would serve; the bytes that were asked for.
inline uint64_t pull(WeightReceiver& receiver, const WeightSnapshot& source) {
  uint64_t asked_bytes = 0;
  while (!receiver.complete()) {
    for (const ChunkBody& c : receiver.requests({})) {
      asked_bytes += c.bytes;
      std::vector<std::byte> bytes;
      for (uint64_t i = c.tensor; i < c.tensor + c.tensors; ++i) {
        const Buffer& from = c.base_version >= 0 ? source.delta->payloads[i] : source.tensors[i];
        bytes.insert(bytes.end(), from.bytes.begin(), from.bytes.end());
      }
      REQUIRE(receiver.accept(c, Frame(bytes).subspan(c.offset, c.bytes)).ok());
    }
  }
  return asked_bytes;
}

inline std::shared_ptr<WeightSnapshot> with_delta(const Snapshot& base, const Snapshot& next) {
  auto out = std::make_shared<WeightSnapshot>(*next);
  out->delta = make_delta(*base, *next);
  return out;
}

}  // namespace ringside::bridge::test
