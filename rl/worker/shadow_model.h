// Copy of the policy in our own decoder, beside an inference server. With it a worker computes the
// log-probs that the server should give, scores completions that the server could not score, and
// writes the weights to disk for the server.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/models/decoder.h"
#include "rl/config/config.h"
#include "rollout_bridge/protocol/schema.h"
#include "rollout_bridge/weights/snapshot.h"

namespace ringside::rl {

// Needs host memory for one copy of the model.
// Thread safety: none.
class ShadowModel {
 public:
  // Builds the decoder of config.model.
  // Throws: std::runtime_error when its configuration cannot be read.
  explicit ShadowModel(const Config& config);

  // Installs the weights. Returns their root hash recomputed from the installed bytes.
  // Throws: c10::Error when names or shapes are not the model's.
  std::string install(const bridge::WeightSnapshot& snapshot);

  // Log-probs [N - 1] of ids[1], ids[2], ... at `temperature`, N >= 2.
  // Blocks: for one forward pass.
  // Throws: c10::Error for fewer than two ids.
  std::vector<float> score(const std::vector<int64_t>& ids, double temperature) const;

  const engine::Decoder& decoder() const { return *decoder_; }

 private:
  std::unique_ptr<engine::Decoder> decoder_;
};

}  // namespace ringside::rl
