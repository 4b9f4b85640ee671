// Keeps an inference server at the weights the trainer published: loads them, asks the server for
// the log-probs of a fixed text, and compares with what the same weights give in our own decoder.
// The server lays weights out anew, so no hash of what it runs can be had; the hash of what it was
// given and this probe stand in for it.
#pragma once

#include <memory>
#include <string>

#include "rl/config/config.h"
#include "rl/worker/shadow_model.h"
#include "rl/worker/weight_route.h"
#include "rollout_bridge/servers/inference_server.h"

namespace ringside::rl {

class ServedWeights {
 public:
  // The server must be connected. Throws what make_weight_route throws, and std::runtime_error when
  // the server cannot pause as rollout.server_options.pause says.
  ServedWeights(const Config& config, bridge::InferenceServer& server);

  // With nothing of ours running on the server (pause abort: what runs is answered as aborted).
  // Pauses it, loads, probes, resumes it in any case. On an error, nothing may be sampled before a
  // later install() succeeds. Blocks.
  bridge::Status install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot);

  // pause abort: has the server answer what runs at once, as aborted; install() follows when all
  // answers are here.
  bridge::Status interrupt();

  // The probe alone: is the server still at what was installed last? kChecksum when its answers are
  // others. A server that scores no texts samples some, and its log-probs of those are compared.
  bridge::Status verify();

  // Root hash of the installed version, computed anew from the bytes in our decoder.
  const std::string& root_hash() const { return root_hash_; }
  const ShadowModel& shadow() const { return shadow_; }

 private:
  bridge::Status load_and_probe(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot);
  bridge::Status pause();
  // Mean distance of log-probs: of the probe's own tokens, or of some that the server sampled after
  // it.
  bridge::Result<double> distance_by_scores();
  bridge::Result<double> distance_by_samples();

  ServerConfig options_;
  bridge::InferenceServer& server_;
  ShadowModel shadow_;
  std::unique_ptr<WeightRoute> route_;
  std::vector<int64_t> probe_ids_;
  std::vector<float> expected_;  // of probe_ids_, under what is installed
  std::string root_hash_;
};

}  // namespace ringside::rl
