// The numbers of one GRPO step, with TRL's names where they exist.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rl/config/config.h"
#include "rl/report/metrics.h"
#include "rl/rollouts/source_counters.h"
#include "rl/step/policy_update.h"
#include "rl/trainer/learner.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// Losses and gradient norm as means over the step's optimizer steps, KL, entropy and the like as
// means over their loss tokens, then what the rollouts say of themselves. Without a policy update
// (only the critic learnt) the policy's figures are left out. state: of the step's end, before its
// version was counted up, against which staleness is counted.
Metrics rl_step_metrics(std::span<const bridge::Rollout> rollouts, const StepBatch& batch,
                        const StepAdvantages& advantages, const StepUpdates& updates,
                        const TrainingState& state, const Config& config);

// Alarms of a trainer and rollout engine that do not compute the same policy: adds
// alarm/mult_prob_error (the ratio's error above 1.05, as NeMo-RL advises) and alarm/mismatch_kl
// (above 1e-3), 1 where it rings, and returns a sentence for each that does. Samples of older
// weights differ by nature: with one among them nothing is added.
std::vector<std::string> add_alarms(Metrics& metrics);

// What sequence parallelism did, means over the optimizer steps: what sharing prefixes saved
// (sp/prefix_saving in tokens, sp/pair_saving in attended pairs), bytes of attention as planned
// beside as sent, the fullest ring rank over the mean.
Metrics sequence_metrics(const std::vector<UpdateResult>& updates);

// The part that any algorithm has: loss, policy_loss, kl, entropy, grad_norm.
Metrics update_metrics(const std::vector<UpdateResult>& updates);

}  // namespace ringside::rl
