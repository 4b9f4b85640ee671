#include "rl/policy_update.h"

#include <ATen/ATen.h>

#include <cmath>

#include "engine/optim/grad_clip.h"
#include "sp/grad_sync.h"

namespace ringside::rl {
namespace {

// Sums of this rank -> sums of the world. Sequence-parallel ranks hold disjoint entries, so nothing is counted twice.
LossSums reduce(const LossSums& local, sp::Communicator& world) {
  const auto additive = sp::sum_scalars(local.additive(), world);
  const auto highest = sp::max_scalars({local.sampling_difference_max}, world);
  return LossSums::from(additive, highest[0]);
}

}  // namespace

engine::SequenceParallelAttention shard_attention(const sp::Shard& shard, const sp::MeshCommunicators& comms) {
  return engine::SequenceParallelAttention({shard.plan, comms.ulysses, comms.ring});
}

engine::TokenScores score_shard(const engine::Decoder& decoder, const sp::Shard& shard,
                                engine::SequenceParallelAttention& attention) {
  const at::Tensor hidden_sE = decoder.forward(shard.ids_s, shard.positions_s, attention);
  return decoder.score(hidden_sE.index_select(0, shard.source_n), shard.target_n, shard.temperature_n);
}

UpdateResult update_policy(engine::Decoder& decoder, engine::AdamW& optimizer,
                           const std::vector<sp::Shard>& shards, const LossFunction& loss,
                           double learning_rate, double max_grad_norm,
                           const sp::MeshCommunicators& comms) {
  const auto units = decoder.units();
  for (engine::ParamUnit* unit : units) {
    unit->zero_grad();
  }
  LossSums sums;
  for (const sp::Shard& shard : shards) {
    auto attention = shard_attention(shard, comms);  // recomputed layers call it again in the backward
    const auto scores = score_shard(decoder, shard, attention);
    const PolicyLoss result = loss(scores.logprobs_n, scores.entropy_n, shard);
    sums += result.sums;
    result.loss.backward();
  }
  std::vector<at::Tensor> gradients;
  for (engine::ParamUnit* unit : units) {
    gradients.push_back(unit->grad());
  }
  sp::sum_gradients(gradients, *comms.world);
  const double grad_norm = engine::clip_grad_norm(units, max_grad_norm);
  TORCH_CHECK(std::isfinite(grad_norm), "the gradient norm is ", grad_norm,
              "; the weights were left as they were before this optimizer step");
  optimizer.step(learning_rate);
  return {reduce(sums, *comms.world), grad_norm};
}

}  // namespace ringside::rl
