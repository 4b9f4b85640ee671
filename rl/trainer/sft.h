// Supervised fine-tuning on {"prompt", "completion"} or {"messages"} lines (sft_examples.h): the
// loss is on completions and assistants' turns alone, packed and cut over ranks exactly as rollouts
// are.
#pragma once

#include "rl/trainer/training_run.h"

namespace ringside::rl {

// Trains until run.steps(). Collective over the run's world; blocks until done. Throws
// std::runtime_error on unusable data.
void train_sft(TrainingRun& run);

}  // namespace ringside::rl
