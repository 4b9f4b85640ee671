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

// Needs host memory for one copy of the model from install() or a later use to release(). It keeps
// the snapshot.
// Thread safety: none.
class ShadowModel {
 public:
  // Of config.model; nothing is loaded.
  explicit ShadowModel(Config config);

  // Installs the weights. Returns their root hash recomputed from the installed bytes.
  // Throws: c10::Error when names or shapes are not the model's; std::runtime_error when the
  // model's configuration cannot be read.
  std::string install(std::shared_ptr<const bridge::WeightSnapshot> snapshot);

  // Log-probs [N - 1] of ids[1], ids[2], ... at `temperature`, N >= 2, under the installed weights.
  // Blocks: for one forward pass; after release() also until the weights are installed again.
  // Throws: c10::Error for fewer than two ids, and when nothing was installed.
  std::vector<float> score(const std::vector<int64_t>& ids, double temperature);

  // Installs the weights again after release().
  // Throws: c10::Error when nothing was installed.
  const engine::Decoder& decoder();

  // Frees the copy of the model.
  void release() { decoder_.reset(); }
  bool is_loaded() const { return decoder_ != nullptr; }

 private:
  Config config_;
  std::shared_ptr<const bridge::WeightSnapshot> snapshot_;
  std::unique_ptr<engine::Decoder> decoder_;  // null after release()
};

}  // namespace ringside::rl
