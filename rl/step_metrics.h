// The numbers of one GRPO step, with TRL's names where they exist.
#pragma once

#include <cstdint>
#include <span>

#include "rl/config/config.h"
#include "rl/metrics/metrics.h"
#include "rl/policy_update.h"
#include "rollout_bridge/schema.h"

namespace ringside::rl {

// Losses and gradient norm as means over the step's optimizer steps, KL, entropy and the like as means over their loss
// tokens, then what the rollouts say of themselves.
// weight_version: of the weights that the step started from, against which staleness is counted.
Metrics grpo_step_metrics(std::span<const bridge::Rollout> rollouts,
                              const std::vector<UpdateResult>& updates, int64_t weight_version,
                              const Config& config);

// What sequence parallelism did, means over the optimizer steps: what sharing prefixes saved (sp/prefix_saving in tokens,
// sp/pair_saving in attended pairs), bytes of attention as planned beside as sent, the fullest ring rank over the mean.
Metrics sequence_metrics(const std::vector<UpdateResult>& updates);

// The part that any algorithm has: loss, policy_loss, kl, entropy, grad_norm.
Metrics update_metrics(const std::vector<UpdateResult>& updates);

}  // namespace ringside::rl
