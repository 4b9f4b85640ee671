// The policy beside an inference server: the same weights in our own decoder, so that a worker can
// tell what the server should answer, score what it could not, and write the weights for it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/models/decoder.h"
#include "rl/config/config.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// Costs one copy of the model in host memory. Not thread-safe.
class ShadowModel {
 public:
  // The shape of config.model. Throws std::runtime_error when it cannot be read.
  explicit ShadowModel(const Config& config);

  // Copies the weights in; returns their root hash computed anew from what is installed. Throws
  // c10::Error when names or shapes are not the model's.
  std::string install(const bridge::WeightSnapshot& snapshot);

  // Log-probs [N - 1] of ids[1], ids[2], ... at `temperature`, N >= 2. One forward pass; blocks.
  std::vector<float> score(const std::vector<int64_t>& ids, double temperature) const;

  const engine::Decoder& decoder() const { return decoder_; }

 private:
  engine::Decoder decoder_;
};

}  // namespace ringside::rl
