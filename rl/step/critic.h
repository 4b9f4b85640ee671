// PPO's critic: a value model with its optimizer on this rank. It values the tokens of a step once
// before the updates, for the advantages, and is then fitted to the returns, mini-batch by
// mini-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "engine/io/value_model_files.h"
#include "engine/models/value_model.h"
#include "engine/runner/model_runner.h"
#include "rl/algorithm/value_loss.h"
#include "rl/config/config.h"
#include "rl/report/metrics.h"
#include "rl/step/column_tensors.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

// One update, over all ranks and the same on each.
struct CriticUpdate {
  ValueSums sums;
  ValueStatistics statistics;  // of the old values and the returns
  double grad_norm = 0.0;      // of the summed gradient, before the clip
  double learning_rate = 0.0;
};

// Named as verl: critic/vf_loss, vf_clipfrac, vf_explained_var, values/mean, values/min,
// values/max, returns/mean, grad_norm, lr. Loss and gradient norm are means over the updates, the
// rest is of all their tokens together (0 where there are none), the rate is the last. Throws
// std::invalid_argument without an update.
Metrics critic_metrics(const std::vector<CriticUpdate>& updates);

// Loads algorithm.critic.model_path, or model.path when that is empty (then drawn at random where
// model.init says so), in model.dtype. Not collective. Throws: std::runtime_error as
// load_value_weights.
std::unique_ptr<engine::ValueModel> load_starting_critic(const Config& config);

// Collective methods are called by all ranks in step. Not thread-safe.
class Critic {
 public:
  // Starts from load_starting_critic(). Not collective.
  Critic(const Config& config, const sp::ProcessGroups& comms);

  const engine::ModelRunner& runner() const { return runner_; }

  // Fits the values of the mini-batch to columns.returns, clipped around columns.value
  // (value_loss.h): gradients over all micro-batches, clip to algorithm.critic.max_grad_norm, one
  // AdamW step at learning_rate. loss_tokens: entries of the mini-batch over all ranks; with 0 the
  // gradient is zero. Collective over the world. Throws: c10::Error on negative loss_tokens;
  // engine::Diverged as ModelRunner::step.
  CriticUpdate update(const LocalBatch& mini_batch, const StepColumns& columns, double loss_tokens,
                      double learning_rate);

  // Writes the value model (save_value_model) and trainer/optimizer.safetensors: AdamW's moments by
  // parameter name and its step count. Atomic and durable, as a checkpoint; may lie inside one that
  // is being written. Call on one rank. Throws std::runtime_error or std::system_error on a write
  // failure; an older directory of that name then stays.
  void save(const std::filesystem::path& dir) const;

  // Takes up what save() wrote. Throws std::runtime_error naming file and tensor when it does not
  // fit.
  void load(const std::filesystem::path& dir);

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
