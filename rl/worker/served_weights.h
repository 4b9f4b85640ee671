// Weights of an inference server, kept at the version that the trainer published. Each installation
// loads the weights, requests the log-probs of a fixed text (the probe) from the server, and
// compares them with those of the same weights in our own decoder. A server stores weights in a
// layout of its own, so the weights it runs cannot be hashed. The hash of the bytes given to it and
// the probe replace such a hash.
// Thread safety: none.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/worker/shadow_model.h"
#include "rl/worker/weight_route.h"
#include "rollout_bridge/servers/inference_server.h"

namespace ringside::rl {

class ServedWeights {
 public:
  // The server must be connected.
  // Throws: what make_weight_route throws; std::runtime_error when the server cannot pause as
  // rollout.server_options.pause says.
  ServedWeights(const Config& config, bridge::InferenceServer& server);

  // Pauses the server, loads the weights, runs the probe, and resumes the server in any case. Call
  // it with none of our requests running (with pause abort, running requests are answered as
  // aborted). After an error, nothing may be sampled until a later install() succeeds.
  // Blocks: until the server has loaded the weights and answered the probe.
  bridge::Status install(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot);

  // For pause abort: makes the server answer running requests at once, as aborted. install()
  // follows when all answers have arrived.
  // Blocks: up to the server's deadline for a pause.
  bridge::Status interrupt();

  // Runs the probe: whether the server still has the weights installed last. kChecksum if its
  // answers differ. For a server that cannot score texts, log-probs of tokens that it samples are
  // compared.
  // Blocks: until the server has answered, at most its deadlines.
  bridge::Status verify();

  // Root hash of the installed version, recomputed from the bytes in our decoder.
  const std::string& root_hash() const { return root_hash_; }

  // Scores a text under the installed weights in our own decoder, see ShadowModel::score(). A
  // server that makes this necessary will do so again: from then on the copy of the model is kept.
  std::vector<float> score(const std::vector<int64_t>& ids, double temperature,
                           const std::string& adapter = "");
  // Whether a copy of the model is in memory.
  bool has_copy() const { return shadow_.is_loaded(); }

 private:
  bridge::Status load_and_probe(const std::shared_ptr<const bridge::WeightSnapshot>& snapshot);
  bridge::Status pause();
  // Mean distance of log-probs of one adapter: over the probe's own tokens, or over tokens that the
  // server sampled after it.
  bridge::Result<double> distance_by_scores(const std::string& adapter);
  bridge::Result<double> distance_by_samples(const std::string& adapter);
  bridge::Status verify(const std::string& adapter);

  ServerConfig options_;
  bridge::InferenceServer& server_;
  ShadowModel shadow_;
  bool keeps_copy_;  // between install() and install()
  std::unique_ptr<WeightRoute> route_;
  std::vector<std::string> adapters_;  // of lora.adapters, or "" alone
  std::vector<int64_t> probe_ids_;
  // Log-probs of probe_ids_ under what is installed, by adapter.
  std::map<std::string, std::vector<float>> expected_;
  std::string root_hash_;
};

}  // namespace ringside::rl
