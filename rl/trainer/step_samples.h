// A few samples of each step with their log-probs before and after its updates, written to
// RUN_DIR/samples.jsonl for reading: those with the lowest and the highest rewards.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "rl/data/training_batch.h"
#include "rl/rollouts/rollout_log.h"
#include "rl/rollouts/rollout_source.h"
#include "rl/trainer/training_run.h"

namespace ringside::rl {

// Collective over: the run's world, for both methods. Every rank picks the same samples.
class StepSamples {
 public:
  // Opens the file on rank 0 if log.samples is above 0. Not collective.
  // Throws: as open_sample_log().
  explicit StepSamples(TrainingRun& run);

  // Picks samples of the step and computes their log-probs. The arguments must live until
  // write(). source: rank 0's, which knows the reference answers; else null.
  void score(std::span<const bridge::Rollout> rollouts, const StepBatch& batch,
             const StepAdvantages& advantages, RolloutSource* source);
  // Computes their log-probs again, after the step's updates, and writes them on rank 0.
  void write();

 private:
  struct Picked {
    LoggedSample sample;
    sp::Range tokens;  // its loss tokens in the step's columns
  };
  std::vector<double> logprobs() const;

  TrainingRun& run_;
  std::optional<SampleLog> log_;  // rank 0's
  std::vector<Picked> picked_;
  std::vector<sp::Document> documents_;  // of the picked samples, in order
  std::vector<double> temperature_;      // of their loss tokens
  std::vector<double> before_;           // their log-probs before the updates
};

}  // namespace ringside::rl
