// A few samples of each step with the log-probs that the step computed for them, written to
// RUN_DIR/samples.jsonl for reading: those with the lowest and the highest rewards.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/config/config.h"
#include "rl/data/training_batch.h"
#include "rl/rollouts/granted_images.h"
#include "rl/rollouts/rollout_log.h"
#include "rl/rollouts/rollout_source.h"
#include "rl/step/column_tensors.h"
#include "rl/step/policy_update.h"
#include "rl/trainer/run_ranks.h"

namespace ringside::rl {

// Every rank picks the same samples.
class StepSamples {
 public:
  // Opens the file on rank 0 if log.samples is above 0. images: of prompts that have some; null:
  // none has. All references must outlive this. Not collective.
  // Throws: as open_sample_log().
  StepSamples(const Config& config, const RunRanks& ranks, const std::filesystem::path& run_dir,
              GrantedImages* images);

  // Picks samples of the step. The arguments must live until write(). source: rank 0's, which
  // knows the reference answers; else null. Reads the images of the samples on rank 0. Not
  // collective.
  void pick(std::span<const bridge::Rollout> rollouts, const StepBatch& batch,
            const StepAdvantages& advantages, RolloutSource* source);
  // Writes them on rank 0, after the updates of step `step` (counted from 1). Their log-probs
  // before the step are those of its first forward pass over them: the scoring pass if there was
  // one, else the first training pass. Those after it are computed anew with log.samples_after;
  // without it they are those of the last training pass, and absent if the step has one optimizer
  // step. policy: that the samples are of. mini_batches, batch and updates: the step's.
  // Collective over: the world.
  void write(int64_t step, const engine::ModelRunner& policy,
             const std::vector<LocalBatch>& mini_batches, const StepBatch& batch,
             std::span<const UpdateResult> updates);

 private:
  struct Picked {
    LoggedSample sample;
    sp::Range tokens;  // its loss tokens in the step's columns
  };
  // Over all ranks, of the loss tokens of all picked samples in order.
  // Shapes: [n] each, or empty where the step did not compute them.
  struct Logprobs {
    std::vector<double> before;
    std::vector<double> after;
  };
  Logprobs logprobs(const engine::ModelRunner& policy, const std::vector<LocalBatch>& mini_batches,
                    const StepBatch& batch, std::span<const UpdateResult> updates) const;
  std::vector<double> score_again(const engine::ModelRunner& policy, const StepBatch& batch) const;
  bool has_picked(const sp::MicroBatch& batch, int64_t first_token) const;
  std::vector<double> of_picked(const std::vector<double>& column) const;

  const Config& config_;
  const RunRanks& ranks_;
  GrantedImages* images_;
  std::optional<SampleLog> log_;  // rank 0's
  std::vector<Picked> picked_;
};

}  // namespace ringside::rl
