// Supervised fine-tuning on {"prompt", "completion"} or {"messages"} lines (sft_examples.h). The
// loss covers completions and assistant turns only. Documents are packed and sharded exactly as
// rollouts are. They are read and tokenized a few steps ahead, so data.sft may be larger than
// memory. Every eval.every steps the losses on eval_sets() are metrics.
#pragma once

#include "rl/trainer/training_run.h"

namespace ringside::rl {

// Trains until run.steps().
// Collective over: the run's world.
// Blocks: until training is done.
// Throws: std::runtime_error "FILE:LINE: ..." on unusable data, on one rank, and RankFailed on the
// others; TrainingFailed when training has diverged.
void train_sft(TrainingRun& run);

}  // namespace ringside::rl
