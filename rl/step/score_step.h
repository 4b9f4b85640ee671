// Scoring pass before the updates of a step: log-probs of old policy, reference and teacher, and
// the critic's values, written to the step's columns.
#pragma once

#include <vector>

#include "engine/runner/model_runner.h"
#include "rl/config/config.h"
#include "rl/step/column_tensors.h"
#include "rl/step/teacher.h"
#include "sp/mesh/process_groups.h"

namespace ringside::rl {

struct ScoringModels {
  const engine::ModelRunner& policy;
  const engine::ModelRunner* reference;  // nullptr without a KL term to a reference
  const engine::ModelRunner* critic;     // nullptr without a critic
  const Teachers* teachers = nullptr;    // nullptr without distillation
  // The step's mini-batches as those two see them, whose heads and windows may be others than the
  // policy's; of the reference empty where they are the policy's.
  std::vector<LocalBatch> seen_by_reference = {};
  std::vector<std::vector<LocalBatch>> seen_by_teachers = {};  // of each model
  ServedColumns served = {};                                   // of teachers on servers
};

// Whether old log-probs need a forward pass of their own. Old log-probs are those of the weights at
// the start of the step. With one optimizer step per step they equal the log-probs of that step's
// own forward pass, so no extra pass is needed unless something reads them before.
bool needs_old_pass(const Config& config);

// Whether the column that this pass fills holds the tokens of all ranks; else those of this rank.
bool old_is_merged(const Config& config);

// Fills the columns old, reference, teacher and value as far as the configuration reads them.
// Columns that advantages and corrections read, and all where rearranges() says so, are merged over
// all ranks with one all-reduce. The other columns hold this rank's tokens only. Without autograd.
// The policy replays the mini-batches' routes; with router_replay recompute its pass records them
// instead. Reference, teacher and critic choose by themselves. Collective over: the world.
void score_step(StepColumns& columns, std::vector<LocalBatch>& mini_batches,
                const ScoringModels& models, const Config& config, const sp::ProcessGroups& comms);

// For loss_aggregation micro_batch_token_mean: divides the weight of this rank's entries by the
// loss tokens of their micro-batch, and by the number of micro-batches that have loss tokens, both
// over all ranks. Does nothing for other aggregations.
// Collective over: the world.
// Source: TRL's loss_type "bnpo".
void apply_micro_batch_mean(StepColumns& columns, const LocalBatch& mini_batch,
                            LossAggregation aggregation, const sp::ProcessGroups& comms);

}  // namespace ringside::rl
