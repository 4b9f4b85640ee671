// The scoring pass before the updates of a step: log-probs under the old and the reference policy
// and the critic's values, as columns of the step.
#pragma once

#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/config/config.h"
#include "rl/step/column_tensors.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

struct ScoringModels {
  const engine::ModelRunner& policy;
  const engine::ModelRunner* reference;  // nullptr without a KL term to a reference
  const engine::ModelRunner* critic;     // nullptr without a critic
};

// Whether old log-probs take a forward pass of their own: they are those of the weights at the
// start of the step, and with a single optimizer step a step the ones of that step's own forward,
// unless something is computed from them before.
bool needs_old_pass(const Config& config);

// Fills the columns old, reference and value as far as the configuration reads them. Those that
// advantages and corrections are computed from are completed over all ranks, with one all-reduce;
// the others hold this rank's tokens. Without autograd. Collective over the world.
void score_step(StepColumns& columns, const std::vector<LocalBatch>& mini_batches,
                const ScoringModels& models, const Config& config, const sp::ProcessGroups& comms);

// For loss_aggregation micro_batch_token_mean: divides the weight of this rank's entries by the
// loss tokens of their micro-batch and the number of micro-batches that have any, over all ranks
// (TRL's bnpo). Does nothing for other aggregations. Collective over the world.
void apply_micro_batch_mean(StepColumns& columns, const LocalBatch& mini_batch,
                            LossAggregation aggregation, const sp::ProcessGroups& comms);

}  // namespace ringside::rl
