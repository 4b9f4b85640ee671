// One optimizer step over the micro-batches of a mini-batch, and the score pass before it: forward, loss, backward, summed
// gradients, clip, AdamW. Used by every algorithm; the loss is handed in.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/model/attention_backend.h"
#include "engine/model/decoder.h"
#include "engine/optim/adamw.h"
#include "rl/algorithm/losses.h"
#include "sp/collator/collator.h"
#include "sp/comm/mesh.h"

namespace ringside::rl {

using LossFunction = std::function<PolicyLoss(const at::Tensor& logprob_n, const at::Tensor& entropy_n,
                                              const sp::Shard& shard)>;

// What sequence parallelism did in one update, over all ranks.
struct SequenceFigures {
  double prefix_saving = 1.0;    // tokens of the documents / tokens computed
  double pair_saving = 1.0;      // query-key pairs of the documents / pairs computed
  double predicted_bytes = 0.0;  // that the plans say attention sends
  double sent_bytes = 0.0;       // that it sent
  double balance_tokens = 1.0;   // fullest ring rank / mean, of the worst micro-batch
  double balance_pairs = 1.0;
};

struct UpdateResult {
  LossSums sums;           // over all ranks
  SequenceFigures sequence;
  double grad_norm = 0.0;  // of the summed gradient, before the clip
};

// Mean over the loss tokens of all updates together; 0 without one.
double token_mean(const std::vector<UpdateResult>& updates, double LossSums::* sum);

// The attention of a shard's micro-batch over the mesh.
std::unique_ptr<engine::AttentionBackend> shard_attention(const sp::Shard& shard, const sp::MeshCommunicators& comms);

// Log-probs and entropies of a shard's entries. `attention` must outlive a backward through the result. Collective over the
// sequence-parallel group.
engine::TokenScores score_shard(const engine::Decoder& decoder, const sp::Shard& shard,
                                engine::AttentionBackend& attention);

// Forward and backward over all shards, sum over the world, clip to max_grad_norm (0 = no clipping), one AdamW step at learning_rate.
// Collective over the world: every rank brings the same number of shards of the same plan. The result is the same on
// every rank. Throws c10::Error, on every rank and before the weights change, when the gradient norm is not finite.
UpdateResult update_policy(engine::Decoder& decoder, engine::AdamW& optimizer,
                           const std::vector<sp::Shard>& shards, const LossFunction& loss,
                           double learning_rate, double max_grad_norm,
                           const sp::MeshCommunicators& comms);

}  // namespace ringside::rl
