// The reinforcement-learning trainer. Start reading the project at trainer.cpp.
#pragma once

#include <memory>

#include "rl/rollouts/rollout_source.h"
#include "rl/trainer/training_run.h"

namespace ringside::rl {

// Trains until run.steps(). `source`: on rank 0; nullptr on the other ranks.
// Collective over: the run's world.
// Blocks: until training is done.
// Throws: TrainingFailed when training has diverged; on any other failure its exception on one
// rank, and on the others RankFailed or, after parallel.collective_timeout_s, c10::Error. The run's
// last checkpoint stays intact.
void train_rl(TrainingRun& run, RolloutSource* source);

}  // namespace ringside::rl
