// PPO's critic: a value model with its optimizer on this rank. It values the tokens of a step once before the updates,
// for the advantages, and is fitted to the returns that come of them, mini-batch by mini-batch.
// Shapes: n = loss entries of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "engine/model/value_model.h"
#include "engine/optim/adamw.h"
#include "rl/algorithm/value_loss.h"
#include "rl/config/config.h"
#include "rl/metrics/metrics.h"
#include "sp/collator/collator.h"
#include "sp/comm/mesh.h"

namespace ringside::rl {

// One update, over all ranks and the same on each.
struct CriticUpdate {
  ValueSums sums;
  ValueStatistics statistics;  // of the old values and the returns
  double grad_norm = 0.0;      // of the summed gradient, before the clip
  double learning_rate = 0.0;
};

// Named as verl: critic/vf_loss, vf_clipfrac, vf_explained_var, values/mean, values/min, values/max, returns/mean,
// grad_norm, lr. Loss and gradient norm are means over the updates, the rest is of all their tokens together (0 where
// there are none), the rate is the last. Throws std::invalid_argument without an update.
Metrics critic_metrics(const std::vector<CriticUpdate>& updates);

// Collective methods are called by all ranks in step. Not thread-safe.
class Critic {
 public:
  // Loads algorithm.critic.model_path, or model.path when that is empty (then drawn at random where model.init says so),
  // in model.dtype. Not collective. Throws std::runtime_error as load_value_weights does.
  explicit Critic(const Config& config);

  // The values of a shard's entries, [n] in fp32 (fp64 for doubles), outside autograd. Collective over the
  // sequence-parallel group. n may be 0.
  at::Tensor score(const sp::Shard& shard, const sp::MeshCommunicators& comms) const;

  // Fits the values of all shards to return_n, clipped around old_value_n (value_loss.h): forward
  // and backward over all shards, sum over the world, clip to algorithm.critic.max_grad_norm, one
  // AdamW step at learning_rate. loss_tokens: entries of the mini-batch over all ranks; with 0 the
  // gradient is zero. Collective over the world: every rank brings the same number of shards of the
  // same plan. Throws c10::Error on negative loss_tokens and Diverged as apply_gradients does.
  CriticUpdate update(const std::vector<sp::Shard>& shards, double loss_tokens, double learning_rate,
                      const sp::MeshCommunicators& comms);

  // Writes the value model (save_value_model) and trainer/optimizer.safetensors: AdamW's moments by parameter name and its
  // step count. Atomic and durable, as a checkpoint; may lie inside one that is being written. Call on one rank.
  // Throws std::runtime_error or std::system_error on a write failure; an older directory of that name then stays.
  void save(const std::filesystem::path& dir) const;

  // Takes up what save() wrote. Throws std::runtime_error naming file and tensor when it does not fit.
  void load(const std::filesystem::path& dir);

  engine::ValueModel& model() { return model_; }
  const engine::ValueModel& model() const { return model_; }

 private:
  at::Tensor values(const sp::Shard& shard, engine::AttentionBackend& attention) const;

  CriticConfig config_;
  engine::ValueModel model_;
  engine::AdamW optimizer_;
};

}  // namespace ringside::rl
