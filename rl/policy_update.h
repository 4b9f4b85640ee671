// One optimizer step over the micro-batches of a mini-batch, and the score pass before it: forward, loss, backward, summed
// gradients, clip, AdamW. Used by every algorithm; the loss is handed in.
#pragma once

#include <functional>
#include <vector>

#include "engine/model/decoder.h"
#include "engine/model/sequence_parallel_attention.h"
#include "engine/optim/adamw.h"
#include "rl/algorithm/losses.h"
#include "sp/collator/collator.h"
#include "sp/comm/mesh.h"

namespace ringside::rl {

using LossFunction = std::function<PolicyLoss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                                              const sp::Shard& shard)>;

struct UpdateResult {
  LossSums sums;           // over all ranks
  double grad_norm = 0.0;  // of the summed gradient, before the clip
};

// The attention of a shard's micro-batch over the mesh.
engine::SequenceParallelAttention shard_attention(const sp::Shard& shard, const sp::MeshCommunicators& comms);

// Log-probs and entropies of a shard's entries. `attention` must outlive a backward through the result. Collective over the
// sequence-parallel group.
engine::TokenScores score_shard(const engine::Decoder& decoder, const sp::Shard& shard,
                                engine::SequenceParallelAttention& attention);

// Forward and backward over all shards, sum over the world, clip to max_grad_norm, one AdamW step at learning_rate.
// Collective over the world: every rank brings the same number of shards of the same plan. The result is the same on
// every rank. Throws c10::Error, on every rank and before the weights change, when the gradient norm is not finite.
UpdateResult update_policy(engine::Decoder& decoder, engine::AdamW& optimizer,
                           const std::vector<sp::Shard>& shards, const LossFunction& loss,
                           double learning_rate, double max_grad_norm,
                           const sp::MeshCommunicators& comms);

}  // namespace ringside::rl
