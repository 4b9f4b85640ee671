// The policy in training on this rank, or the reward model: its model with the optimizer, its
// learning-rate schedule, and its optimizer steps. Every algorithm trains it; a checkpoint of the
// run holds it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/models/value_model.h"
#include "engine/runner/model_runner.h"
#include "rl/checkpoint/training_state.h"
#include "rl/config/config.h"
#include "rl/step/column_tensors.h"
#include "rl/step/policy_update.h"
#include "rl/trainer/run_ranks.h"
#include "sp/batch/collator.h"

namespace ringside::rl {

// Thread safety: none.
class PolicyTraining {
 public:
  // Loads load_policy(), or load_value_model() for a reward model. state: of the run; update()
  // counts its optimizer steps. All three must outlive this. Not collective. Blocks: until the
  // weights are read. Throws: as these.
  PolicyTraining(const Config& config, const RunRanks& ranks, TrainingState& state);
  // Of a policy that is loaded: this rank's stages of it. As above.
  PolicyTraining(const Config& config, const RunRanks& ranks, TrainingState& state,
                 std::vector<std::unique_ptr<engine::Decoder>> stages);

  engine::ModelRunner& runner() { return *runner_; }
  // The first of this rank's stages; the whole decoder without a pipeline.
  const engine::Decoder& decoder() const { return runner_->decoder(); }
  // All of them.
  std::vector<const engine::Decoder*> stages() const {
    return std::as_const(*runner_).model().stages();
  }

  // The model, where it is a reward model; else null.
  const engine::ValueModel* reward_model() const {
    return dynamic_cast<const engine::ValueModel*>(&std::as_const(*runner_).model());
  }

  // Schedule factor of the next optimizer step: learning rate / peak, from warm-up and decay only.
  double learning_rate_factor() const;

  // This rank's micro-batches of one optimizer step's documents. The ranks compare the hash of the
  // plan first.
  // Collective over: the world.
  // Throws: c10::Error on every rank when the plans differ; as sp::collate.
  std::vector<sp::MicroBatch> collate(const std::vector<sp::Document>& documents) const;
  // The same micro-batches, with each token on the same rank, for a model whose heads, windows or
  // states are others.
  std::vector<sp::MicroBatch> collate_for(const engine::Decoder& model,
                                          const std::vector<sp::Document>& documents) const;

  // One optimizer step.
  // Collective over: the world.
  // Throws: engine::Diverged on every rank, as update_policy() and when the loss is not finite.
  UpdateResult update(const LocalBatch& mini_batch, const StepColumns& columns,
                      const LossFunction& loss);

 private:
  sp::CollatorOptions collator_options(const engine::Decoder& of) const;

  const Config& config_;
  const RunRanks& ranks_;
  TrainingState& state_;
  std::unique_ptr<engine::ModelRunner> runner_;
};

}  // namespace ringside::rl
