// Conversion of an inference server's answers into rollouts: fills missing log-probs, sets
// versions, computes rewards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rl/worker/served_weights.h"
#include "rl/worker/server_loop.h"
#include "rl/worker/worker_link.h"

namespace ringside::rl {

// `served`, `scorer` and `jobs` must outlive it.
// Thread safety: none.
class ServerAnswers {
 public:
  // worker_id: of the rollouts that it makes.
  ServerAnswers(const Config& config, std::string worker_id, const engine::ModelConfig& model,
                ServedWeights& served, const PromptScorer& scorer, SampleJobs& jobs);

  // One rollout per answer, with its rewards. An answer without version spans was sampled under
  // `version`. Log-probs that the server could not give are recomputed if our decoder can do so:
  // the sampled distribution must be the model's at some temperature, the whole completion of
  // one version, and the prompt without images. Otherwise the sample has failed, as it has if its
  // routed experts do not fit the model. Blocks: until all rewards are computed.
  std::vector<bridge::Rollout> rollouts(std::vector<ServedAnswer> answers, int64_t version) const;

  // A sample that could not be made under `version`.
  bridge::Rollout failed(const ServedAnswer& answer, int64_t version) const;

 private:
  // An answer that can become a rollout.
  struct Sampled {
    SampleJob job;
    std::vector<int64_t> prompt_ids;
    engine::Completion completion;
    std::vector<bridge::VersionSpan> versions;
    bridge::RoutedExperts routed;
  };
  // nullopt if the sample has failed, as rollouts() says.
  std::optional<Sampled> sampled(ServedAnswer& answer, int64_t version) const;
  // False if the log-probs cannot be computed.
  bool complete(ServedAnswer& answer) const;
  // The routed experts of an answer, if the trainer replays them.
  bridge::Result<bridge::RoutedExperts> routes(const ServedAnswer& answer) const;

  Config config_;
  std::string worker_id_;
  std::vector<int32_t> expert_layers_;
  int64_t num_layers_;
  int64_t experts_per_token_;
  ServedWeights& served_;
  const PromptScorer& scorer_;
  SampleJobs& jobs_;
};

}  // namespace ringside::rl
