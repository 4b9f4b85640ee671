// The pass before the updates of a step: what the old policy, the reference and the critic say of the step's tokens, and
// back again what becomes of it. Per-token numbers stay on their ranks as columns of the shards; only where a statistic
// needs the whole step are they gathered, as scalars, never as hidden states.
#pragma once

#include <vector>

#include "engine/model/decoder.h"
#include "rl/algorithm/correction.h"
#include "rl/algorithm/token_advantages.h"
#include "rl/critic.h"
#include "rl/data/training_batch.h"
#include "sp/collator/collator.h"
#include "sp/comm/mesh.h"

namespace ringside::rl {

// The shards of every mini-batch, on this rank.
using StepShards = std::vector<std::vector<sp::Shard>>;

struct Policies {
  const engine::Decoder& policy;
  const engine::Decoder* reference;  // nullptr without a KL term to a reference
  const Critic* critic;              // nullptr without a critic
};

// Whether old log-probs take a forward pass of their own: they are those of the weights at the start of the step, and with
// a single optimizer step a step the ones of that step's own forward, unless something is computed from them before.
bool needs_old_pass(const Config& config);

// Fills old_logprob_n, reference_logprob_n and old_value_n of the shards. Without autograd. Collective over the
// sequence-parallel groups.
void score_step(StepShards& shards, const Policies& policies, const Config& config, const sp::MeshCommunicators& comms);

// Fills the table's old, reference and value with what step_advantages and correction_weights read, the same on every
// rank. Collective over the world where there is something to gather.
void gather_scores(TokenTable& table, const StepBatch& batch, const StepShards& shards, const Config& config,
                   const sp::MeshCommunicators& comms);

// Fills advantage_n, return_n and correction_n of the shards from one number a token of the step's table. Not collective.
void attach_advantages(StepShards& shards, const StepBatch& batch, const StepAdvantages& advantages,
                       const CorrectionResult& correction);

// For loss_aggregation micro_batch_token_mean: divides each entry's weight by the loss tokens of its micro-batch and the
// number of micro-batches that have any, over all ranks (TRL's bnpo). Does nothing for other aggregations. Collective over
// the world.
void apply_micro_batch_mean(std::vector<sp::Shard>& shards, LossAggregation aggregation,
                            const sp::MeshCommunicators& comms);

}  // namespace ringside::rl
