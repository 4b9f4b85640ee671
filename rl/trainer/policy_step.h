// What one policy learned in a step: one of several adapters over a base learns from its own
// rollouts, as in a run of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rl/data/training_batch.h"
#include "rl/report/metrics.h"
#include "rl/trainer/learner.h"
#include "rollout_bridge/protocol/schema.h"

namespace ringside::rl {

struct PolicyStep {
  std::string name;  // of the adapter; "" = the only policy
  std::vector<bridge::Rollout> rollouts;
  StepBatch batch;
  StepAdvantages advantages;
  StepUpdates updates;  // none where no rollout has a score
};

// The steps of several policies as one, for the metrics of the whole step: all rollouts and
// updates, rewards (by_name is 0 for a reward that a policy's rollouts do not have), scores and
// advantages. Without documents and columns, and without a correction: its weights have statistics
// for each policy alone.
PolicyStep joined_step(std::span<const PolicyStep> steps);

// The metrics under names of the adapter's: "adapter/NAME/reward".
Metrics adapter_metrics(const std::string& name, Metrics metrics);

}  // namespace ringside::rl
