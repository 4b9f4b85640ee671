// Learner: the parts of one reinforcement-learning step on one rank, which the trainer's loop calls
// in order. It holds the reference policy and the critic; the policy belongs to the TrainingRun.
// Collective over: the world, for every method whose comment does not say otherwise.
#pragma once

#include <memory>
#include <vector>

#include "rl/algorithm/correction.h"
#include "rl/data/training_batch.h"
#include "rl/step/critic.h"
#include "rl/step/reference_policy.h"
#include "rl/step/score_step.h"
#include "rl/trainer/rank_agreement.h"
#include "rl/trainer/training_run.h"

namespace ringside::rl {

// Results of the optimizer steps of one training step.
struct StepUpdates {
  std::vector<UpdateResult> policy;  // empty while only the critic learns
  std::vector<CriticUpdate> critic;  // empty without a critic
  // Result of correction_weights for the step; `weight` is empty when nothing is corrected.
  CorrectionResult correction;
  double kl_coef = 0.0;  // with which the step's KL terms were multiplied
};

class Learner {
 public:
  // Loads the reference and the critic if the configuration uses them, from the checkpoint that
  // `run` resumed from or from their own directories. Registers both as parts of the run's
  // checkpoints. `run` must outlive the learner. Not collective.
  // Throws: std::runtime_error when one cannot be loaded.
  explicit Learner(TrainingRun& run);

  // Weights of the reference and of the critic, where there is one, which the ranks must agree on.
  // Not collective.
  // Blocks: as weights_fact().
  RankFacts loaded_facts() const;

  // This rank's micro-batches of every mini-batch.
  // Throws: as TrainingRun::collate and routes_of().
  std::vector<LocalBatch> collate(StepBatch& batch) const;

  // Fills the batch's columns of old log-probs, reference log-probs and values, and the routes that
  // the policy replays, if it records them.
  void score(std::vector<LocalBatch>& mini_batches, StepBatch& batch) const;

  // Fills the columns advantage, returns, correction and chosen. Not collective: every rank
  // computes the same. Throws: as step_advantages() and correction_weights().
  StepAdvantages compute_advantages(StepBatch& batch);

  // Runs the inner epochs over the mini-batches: for each the critic's optimizer step, then the
  // policy's.
  // Throws: TrainingFailed when the critic or the policy has diverged.
  StepUpdates update(const std::vector<LocalBatch>& mini_batches, const StepBatch& batch);

  // Updates the adaptive KL coefficient and the reference policy after the step. Not collective.
  void adapt(const StepUpdates& updates, const StepAdvantages& advantages);

 private:
  LossFunction policy_loss(const MiniBatch& mini_batch) const;
  void choose_tokens(StepBatch& batch) const;
  void observe_entropy(const UpdateResult& update);

  TrainingRun& run_;
  const Config& config_;
  std::unique_ptr<ReferencePolicy> reference_;
  std::unique_ptr<Critic> critic_;
  CorrectionResult correction_;
};

}  // namespace ringside::rl
