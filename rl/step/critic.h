// PPO's critic: a value model with its optimizer on this rank. It computes the values of a step's
// tokens once before the updates, for the advantages. Then it is trained on the returns, mini-batch
// by mini-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "engine/io/value_model_files.h"
#include "engine/models/value_model.h"
#include "engine/runner/model_runner.h"
#include "rl/config/config.h"
#include "rl/losses/value_loss.h"
#include "rl/report/metrics.h"
#include "rl/step/column_tensors.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

// Result of one update over all ranks; the same on each.
struct CriticUpdate {
  StepFigures figures;         // of value_loss()
  ValueStatistics statistics;  // of the old values and the returns
  double grad_norm = 0.0;      // of the summed gradient, before the clip
  double learning_rate = 0.0;
};

// Metrics of the critic, with verl's names: critic/vf_loss, vf_clipfrac, vf_explained_var,
// values/mean, values/min, values/max, returns/mean, grad_norm, lr. Loss and gradient norm are
// means over the updates. lr is the last one. The others are over the tokens of all updates
// together (0 without tokens).
// Throws: std::invalid_argument without an update.
Metrics critic_metrics(const std::vector<CriticUpdate>& updates);

// Loads algorithm.critic.model_path, or model.path if that is empty, in model.dtype. If it is empty
// and model.init is random, the weights are drawn at random instead. Not collective.
// Throws: std::runtime_error as load_value_weights; as load_model_config().
std::unique_ptr<engine::ValueModel> load_starting_critic(const Config& config,
                                                         const engine::ComputeContext& context);

// All ranks call the collective methods in the same order.
// Thread safety: none.
class Critic {
 public:
  // Starts from load_starting_critic(). Not collective.
  // Throws: as load_starting_critic().
  Critic(const Config& config, const sp::ProcessGroups& comms);

  const engine::ModelRunner& runner() const { return runner_; }
  engine::ModelRunner& runner() { return runner_; }

  // One optimizer step on the mini-batch: gradients of the loss of values against columns.returns,
  // clipped around columns.value (value_loss.h), over all micro-batches; clip of the gradient norm
  // to algorithm.critic.max_grad_norm; one AdamW step at learning_rate. loss_tokens: entries of the
  // mini-batch over all ranks; with 0 the gradient is zero.
  // Collective over: the world.
  // Throws: c10::Error on negative loss_tokens; engine::Diverged as ModelRunner::step.
  CriticUpdate update(const LocalBatch& mini_batch, const StepColumns& columns, double loss_tokens,
                      double learning_rate);

  engine::ValueModel& model() { return *model_; }
  const engine::ValueModel& model() const { return *model_; }

 private:
  Critic(const Config& config, std::unique_ptr<engine::ValueModel> model,
         const sp::ProcessGroups& comms);

  CriticConfig config_;
  engine::ValueModel* model_;  // owned by runner_
  engine::ModelRunner runner_;
  std::shared_ptr<sp::Communicator> control_;
};

}  // namespace ringside::rl
