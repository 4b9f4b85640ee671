// Learner: the parts of one reinforcement-learning step on one rank, which the trainer's loop calls
// in order. It trains the run's policy and owns the reference policy, the teacher and the critic.
// Collective over: the world, for every method whose comment does not say otherwise.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rl/algorithm/correction.h"
#include "rl/data/record_pixels.h"
#include "rl/data/training_batch.h"
#include "rl/step/critic.h"
#include "rl/step/reference_policy.h"
#include "rl/step/score_step.h"
#include "rl/step/teacher.h"
#include "rl/trainer/policy_training.h"
#include "rl/trainer/rank_agreement.h"
#include "rl/trainer/run_ranks.h"

namespace ringside::rl {

// Results of the optimizer steps of one training step.
struct StepUpdates {
  std::vector<UpdateResult> policy;  // empty while only the critic learns
  std::vector<CriticUpdate> critic;  // empty without a critic
  // Result of correction_weights for the step; `weight` is empty when nothing is corrected.
  CorrectionResult correction;
  double kl_coef = 0.0;  // with which the step's KL terms were multiplied
  int64_t policies = 1;  // whose updates these are; of several come first those of the first passes
};

// How one pass goes over a step's samples.
struct PassPlan {
  std::vector<int64_t> drawn;  // the samples that it trains on, before they are shuffled
  int64_t num_mini_batches = 1;
  uint64_t seed = 0;  // of the order
};

// A model of the learner's that checkpoints must hold.
struct LearnerModel {
  std::string name;
  engine::ModelRunner* runner;
  const engine::ValueModel* final_model = nullptr;  // null: not part of checkpoint-final
};

class Learner {
 public:
  // Loads reference, teacher and critic if the configuration uses them, from their own directories.
  // state: of the run; the learner sets the adaptive coefficients. All four must outlive it. Not
  // collective.
  // Throws: std::runtime_error when a model cannot be loaded.
  Learner(const Config& config, const RunRanks& ranks, PolicyTraining& policy,
          TrainingState& state);

  // Lets all models take images with these pixels and rules. Not collective.
  void take_images(const std::function<RecordPixels::Image(const std::string& hash)>& pixels,
                   const ImageRules& rules);

  // The critic, and a reference that follows the policy. They live as long as the learner.
  std::vector<LearnerModel> checkpointed_models();

  // Weights of reference, teacher and critic, where there is one, which the ranks must agree on.
  // Not collective.
  // Blocks: as weights_fact().
  RankFacts loaded_facts() const;

  // This rank's micro-batches of every mini-batch.
  // Throws: as PolicyTraining::collate and routes_of().
  std::vector<LocalBatch> collate(StepBatch& batch) const;

  // Fills the batch's columns of log-probs of old policy, reference and teacher, and of values; and
  // of the mini-batches the routes that the policy replays, if it records them, and what the
  // teachers say. Blocks: while a teacher's server is asked. Throws: as ServedTeachers::ask().
  void score(std::vector<LocalBatch>& mini_batches, StepBatch& batch) const;

  // Fills the columns advantage, returns, correction and chosen. Not collective: every rank
  // computes the same. Throws: as step_advantages() and correction_weights().
  StepAdvantages compute_advantages(StepBatch& batch);

  // Runs the inner epochs over the mini-batches: for each the critic's optimizer step, then the
  // policy's. With algorithm.resampling or train.shuffle_mini_batches each epoch has mini-batches
  // of its own (rl/data/sample_order.h). A critic with passes of its own makes all of them first.
  // scores: of the samples, before any KL, by which they are drawn.
  // Throws: engine::Diverged on every rank when the critic or the policy has diverged.
  StepUpdates update(const std::vector<LocalBatch>& mini_batches, const StepBatch& batch,
                     std::span<const double> scores);

  // Updates the adaptive KL coefficient and the reference policy after a step of so many samples.
  // Not collective.
  void adapt(const StepUpdates& updates, const StepAdvantages& advantages, int64_t samples);

 private:
  LossFunction policy_loss(const MiniBatch& mini_batch) const;
  // The step's mini-batches as another model sees them.
  std::vector<LocalBatch> seen_by(const engine::ModelRunner& model, const StepBatch& batch) const;
  void choose_tokens(StepBatch& batch) const;
  using PassOver = std::function<void(const StepBatch&, const std::vector<LocalBatch>&)>;
  void run_pass(const StepBatch& batch, const std::vector<LocalBatch>& mini_batches,
                const PassPlan& plan, const PassOver& train) const;
  void train_critic(const StepBatch& batch, const std::vector<LocalBatch>& mini_batches,
                    const std::vector<int64_t>& drawn, StepUpdates& updates);
  void update_critic(const LocalBatch& local, const MiniBatch& mini_batch,
                     const StepColumns& columns, StepUpdates& updates);
  void observe_entropy(const UpdateResult& update);

  const Config& config_;
  const RunRanks& ranks_;
  PolicyTraining& policy_;
  TrainingState& state_;
  std::unique_ptr<ReferencePolicy> reference_;
  std::unique_ptr<Teachers> teachers_;
  std::unique_ptr<Critic> critic_;
  CorrectionResult correction_;
};

}  // namespace ringside::rl
