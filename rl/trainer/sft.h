// Supervised fine-tuning on {"prompt", "completion"} or {"messages"} lines (sft_examples.h). The
// loss covers completions and assistant turns only. Documents are packed and sharded exactly as
// rollouts are.
#pragma once

#include "rl/trainer/training_run.h"

namespace ringside::rl {

// Trains until run.steps().
// Collective over: the run's world.
// Blocks: until training is done.
// Throws: std::runtime_error on unusable data.
void train_sft(TrainingRun& run);

}  // namespace ringside::rl
