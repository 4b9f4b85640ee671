// The learner: one step of reinforcement learning on one rank, in the parts that the trainer's loop
// calls in order. It holds the reference and the critic beside the run's policy. Every method is
// collective over the world unless it says otherwise.
#pragma once

#include <memory>
#include <vector>

#include "rl/algorithm/correction.h"
#include "rl/data/training_batch.h"
#include "rl/step/critic.h"
#include "rl/step/reference_policy.h"
#include "rl/step/score_step.h"
#include "rl/trainer/training_run.h"

namespace ringside::rl {

// What the optimizer steps of one training step reported.
struct StepUpdates {
  std::vector<UpdateResult> policy;  // empty while only the critic learns
  std::vector<CriticUpdate> critic;  // empty without a critic
  CorrectionResult correction;  // what correction_weights said of the step; without weights when
                                // nothing is corrected
};

class Learner {
 public:
  // Loads the reference and the critic where the configuration has them, from the checkpoint that
  // `run` went on from or from their own directories, and has `run` keep them in its checkpoints.
  // `run` must outlive it. Not collective. Throws std::runtime_error when one cannot be loaded.
  explicit Learner(TrainingRun& run);

  // This rank's micro-batches of every mini-batch.
  std::vector<LocalBatch> collate(StepBatch& batch) const;

  // Old and reference log-probs and values, as columns of the batch.
  void score(const std::vector<LocalBatch>& mini_batches, StepBatch& batch) const;

  // The columns advantage, returns and correction. Not collective: every rank computes the same.
  StepAdvantages compute_advantages(StepBatch& batch);

  // The passes over the mini-batches: the critic's step, then the policy's.
  StepUpdates update(const std::vector<LocalBatch>& mini_batches, const StepBatch& batch);

  // Moves what follows the policy from step to step: an adaptive KL coefficient, the reference. Not
  // collective.
  void adapt(const StepUpdates& updates, const StepAdvantages& advantages);

 private:
  LossFunction policy_loss(const LocalBatch& local, const MiniBatch& mini_batch,
                           const StepColumns& columns) const;
  void observe_entropy(const UpdateResult& update);

  TrainingRun& run_;
  const Config& config_;
  std::unique_ptr<ReferencePolicy> reference_;
  std::unique_ptr<Critic> critic_;
  CorrectionResult correction_;
};

}  // namespace ringside::rl
