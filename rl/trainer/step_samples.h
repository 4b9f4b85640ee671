// A few samples of each step with their log-probs before and after its updates, written to
// RUN_DIR/samples.jsonl for reading: those with the lowest and the highest rewards.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/config/config.h"
#include "rl/data/training_batch.h"
#include "rl/rollouts/rollout_log.h"
#include "rl/rollouts/rollout_source.h"
#include "rl/trainer/run_ranks.h"

namespace ringside::rl {

// Collective over: the world, for both methods. Every rank picks the same samples.
class StepSamples {
 public:
  // Opens the file on rank 0 if log.samples is above 0. All references must outlive this. Not
  // collective.
  // Throws: as open_sample_log().
  StepSamples(const Config& config, const RunRanks& ranks, const engine::ModelRunner& policy,
              const std::filesystem::path& run_dir);

  // Picks samples of the step and computes their log-probs. The arguments must live until
  // write(). source: rank 0's, which knows the reference answers; else null.
  void score(std::span<const bridge::Rollout> rollouts, const StepBatch& batch,
             const StepAdvantages& advantages, RolloutSource* source);
  // Computes their log-probs again, after the updates of step `step` (counted from 1), and writes
  // them on rank 0.
  void write(int64_t step);

 private:
  struct Picked {
    LoggedSample sample;
    sp::Range tokens;  // its loss tokens in the step's columns
  };
  std::vector<double> logprobs() const;

  const Config& config_;
  const RunRanks& ranks_;
  const engine::ModelRunner& policy_;
  std::optional<SampleLog> log_;  // rank 0's
  std::vector<Picked> picked_;
  std::vector<sp::Document> documents_;  // of the picked samples, in order
  std::vector<double> temperature_;      // of their loss tokens
  std::vector<double> before_;           // their log-probs before the updates
};

}  // namespace ringside::rl
