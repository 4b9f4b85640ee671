// Optimizer steps on pairs of documents, and their scores: the parts of train_preferences() on one
// rank.
// Collective over: the world, for every method whose comment does not say otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rl/algorithm/pair_losses.h"
#include "rl/config/config.h"
#include "rl/data/preference_examples.h"
#include "rl/report/metrics.h"
#include "rl/step/policy_update.h"
#include "rl/step/reference_policy.h"
#include "rl/trainer/policy_training.h"
#include "rl/trainer/run_ranks.h"
#include "sp/batch/document.h"

namespace ringside::rl {

// The documents of pairs: chosen and rejected of each, in this order.
struct PairDocuments {
  std::vector<sp::Document> documents;
  std::vector<int64_t> entries;  // of each document
  int64_t tokens = 0;            // ids of all
};

// Documents of the task: with an entry for each token of the completion, or for a reward model one
// at the last token. Not collective.
PairDocuments make_pair_documents(std::span<const TokenizedPair> pairs, Task task);

struct PairUpdate {
  UpdateResult update;
  PairFigures figures;  // of the weights before the optimizer step
};

class PreferenceTraining {
 public:
  // Loads the reference of DPO. All must outlive this. Not collective.
  // Throws: std::runtime_error when the reference cannot be loaded.
  PreferenceTraining(const Config& config, const RunRanks& ranks, PolicyTraining& policy);

  // The reference; null for a reward model.
  ReferencePolicy* reference() { return reference_.get(); }

  // The figures of pairs under the weights as they are.
  // Throws: as PolicyTraining::collate.
  PairFigures evaluate(const PairDocuments& pairs) const;

  // One optimizer step on the mean loss of the pairs, over all ranks.
  // Throws: engine::Diverged on every rank as PolicyTraining::update, and when a pair's loss is not
  // finite.
  PairUpdate update(const PairDocuments& pairs);

 private:
  ScoredPairs score(const LocalBatch& local, const PairDocuments& pairs) const;
  PairLosses losses_of(const ScoredPairs& scored) const;

  const Config& config_;
  const RunRanks& ranks_;
  PolicyTraining& policy_;
  std::unique_ptr<ReferencePolicy> reference_;
};

// Metrics of figures, by TRL's names (train_preferences()).
Metrics pair_metrics(const PairFigures& figures, const AlgorithmConfig& config);

}  // namespace ringside::rl
