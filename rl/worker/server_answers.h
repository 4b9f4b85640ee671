// What an inference server answered, made into rollouts: log-probs completed, versions stated,
// rewards computed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rl/worker/served_weights.h"
#include "rl/worker/server_loop.h"
#include "rl/worker/worker_link.h"

namespace ringside::rl {

// Not thread-safe. `served`, `scorer` and `jobs` must outlive it.
class ServerAnswers {
 public:
  ServerAnswers(const Config& config, std::string worker_id, const ServedWeights& served,
                const PromptScorer& scorer, SampleJobs& jobs);

  // One rollout for each answer, sampled under `version` where it has no spans. Computes the
  // rewards; blocks until all are there. Log-probs the server could not give are recomputed where
  // our decoder can: the sampled distribution is the model's at some temperature, all of the
  // completion under one version. Where it cannot, the sample has failed.
  std::vector<bridge::Rollout> rollouts(std::vector<ServedAnswer> answers, int64_t version) const;

  // A sample that could not be made under `version`.
  bridge::Rollout failed(const ServedAnswer& answer, int64_t version) const;

 private:
  // False where the log-probs cannot be had.
  bool complete(ServedAnswer& answer) const;

  Config config_;
  std::string worker_id_;
  const ServedWeights& served_;
  const PromptScorer& scorer_;
  SampleJobs& jobs_;
};

}  // namespace ringside::rl
