// Copy of the policy in our own decoder, beside an inference server. With it a worker computes the
// log-probs that the server should give, scores completions that the server could not score, and
// writes the weights to disk for the server. With lora.adapters it has a decoder for each, over one
// base.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/models/decoder.h"
#include "rl/config/config.h"
#include "rl/publish/weight_snapshot.h"
#include "rl/setup/model_setup.h"
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
  // adapter: one of lora.adapters; "" without these.
  // Blocks: for one forward pass; after release() also until the weights are installed again.
  // Throws: c10::Error for fewer than two ids, when nothing was installed, and for an adapter that
  // is not there.
  std::vector<float> score(const std::vector<int64_t>& ids, double temperature,
                           const std::string& adapter = "");

  // Installs the weights again after release().
  // Throws: c10::Error when nothing was installed, and for an adapter that is not there.
  const engine::Decoder& decoder(const std::string& adapter = "");

  // Frees the copy of the model.
  void release() { models_.clear(); }
  bool is_loaded() const { return !models_.empty(); }

 private:
  // The models as the snapshots of their weights name them.
  std::vector<PrefixedDecoder> prefixed() const;
  // Makes the models, and installs what was installed last.
  void load();

  Config config_;
  std::shared_ptr<const bridge::WeightSnapshot> snapshot_;
  std::vector<WorkerModel> models_;  // none after release()
};

}  // namespace ringside::rl
