// The GRPO trainer: start reading the project at trainer.cpp.
#pragma once

#include <memory>

#include "rl/rollouts/rollout_source.h"
#include "rl/trainer/training_run.h"

namespace ringside::rl {

// Trains until run.steps(). Collective over the run's world; `source` on rank 0, nullptr on the
// others. Blocks until done. Throws on the first failure, with the run's last checkpoint intact.
void train_rl(TrainingRun& run, RolloutSource* source);

}  // namespace ringside::rl
