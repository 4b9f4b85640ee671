// What an inference server answered, made into rollouts: log-probs completed, versions stated, rewards computed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rl/worker/request_pool.h"
#include "rl/worker/served_weights.h"

namespace ringside::rl {

// Not thread-safe. `served` and `scorer` must outlive it.
class ServerAnswers {
 public:
  ServerAnswers(const Config& config, std::string worker_id, const ServedWeights& served, const PromptScorer& scorer);

  // Whether the answer says itself that it is of `version`: by its label, or by spans whose labels are versions.
  static bool names_version(const bridge::GenerateResult& result, int64_t version);
  // Whether it says that it is of other weights. An answer without labels says neither.
  static bool denies_version(const bridge::GenerateResult& result, int64_t version);

  // Log-probs the server could not give are recomputed where our decoder can: the sampled distribution is the model's at some
  // temperature, all of the completion under one version. False where it cannot.
  bool complete(PoolAnswer& answer) const;

  // Complete answers, sampled under `version` where they have no spans. Computes the rewards; blocks until all are there.
  std::vector<bridge::Rollout> rollouts(std::vector<PoolAnswer>& answers, int64_t version) const;

  // A sample that could not be made under `version`.
  bridge::Rollout failed(const PoolAnswer& answer, int64_t version) const;

 private:
  Config config_;
  std::string worker_id_;
  const ServedWeights& served_;
  const PromptScorer& scorer_;
};

}  // namespace ringside::rl
