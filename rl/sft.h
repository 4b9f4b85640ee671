// Supervised fine-tuning on {"prompt", "completion"} lines: the loss is on the completion alone, packed and cut over ranks
// exactly as rollouts are.
#pragma once

#include "rl/training_run.h"

namespace ringside::rl {

// Trains until run.steps(). Collective over the run's world; blocks until done. Throws std::runtime_error on unusable data.
void train_sft(TrainingRun& run);

}  // namespace ringside::rl
