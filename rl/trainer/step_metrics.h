// Metrics of one reinforcement-learning step, with TRL's names where they exist.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rl/checkpoint/manifest.h"
#include "rl/config/config.h"
#include "rl/report/metrics.h"
#include "rl/rollouts/source_counters.h"
#include "rl/step/policy_update.h"
#include "rl/trainer/learner.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

// All metrics of one step. Losses and gradient norms are means over the step's optimizer steps; KL,
// entropy and the other token statistics are means over their loss tokens; then follow statistics
// of the rollouts. The mismatch of trainer and sampler (sampling/, token_mult_prob_error,
// rollout_corr/) is of all the step's samples, under the old policy's log-probs, and with
// old_logprobs rollout under those of the policy that each mini-batch of the first pass meets.
// rollout_is_mean and rollout_is_eff_sample_size are of the weights that are applied, without a
// correction of the raw ratios. actor/kl_coef is the coefficient that the step used. If only the
// critic was updated, the policy's metrics are left out. `state`: at the end of the step, before
// its version is incremented; staleness is counted against that version.
Metrics rl_step_metrics(std::span<const bridge::Rollout> rollouts, const StepBatch& batch,
                        const StepAdvantages& advantages, const StepUpdates& updates,
                        const TrainingState& state, const Config& config);

// Metrics of sequence parallelism, as means over the optimizer steps: savings by shared prefixes
// (sp/prefix_saving in tokens, sp/pair_saving in attended pairs), bytes of attention as planned and
// as sent, and load balance (the fullest ring rank over the mean). Of a model with experts also
// experts/load_max and experts/unused (ExpertFigures).
Metrics sequence_metrics(const std::vector<UpdateResult>& updates);

// Metrics that every algorithm has: loss, policy_loss, kl, entropy, grad_norm, learning_rate (of
// the last optimizer step); with float16 also loss_scale (the last) and skipped_steps.
Metrics update_metrics(const std::vector<UpdateResult>& updates);

// The evaluation `name` (best_metric()) among a step's metrics, if there was one.
std::optional<EvaluationResult> evaluation_of(const Metrics& metrics, const std::string& name);

}  // namespace ringside::rl
