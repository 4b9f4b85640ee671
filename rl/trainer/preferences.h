// Learning from pairs of a chosen and a rejected document (preference_file.h): DPO of the policy
// against a reference, and a reward model by Bradley-Terry. Documents are packed and sharded
// exactly as rollouts are; the prompt of a pair is one shared prefix. A pair's documents may lie in
// different micro-batches and on different ranks: pair_losses.h says why the gradient is exact. So
// each optimizer step runs the forward of the trained model twice, the first time without
// gradients.
#pragma once

#include "rl/trainer/training_run.h"

namespace ringside::rl {

// Trains until run.steps(). Every eval.every steps the losses and accuracies on eval_sets() are
// metrics.
// Metrics, with TRL's names: of DPO loss, rewards/chosen, rewards/rejected, rewards/accuracies,
// rewards/margins, logps/chosen and logps/rejected; of a reward model loss, accuracy, margin,
// min_reward, mean_reward and max_reward.
// Collective over: the run's world.
// Blocks: until training is done.
// Throws: std::runtime_error "FILE:LINE: ..." on unusable data, on one rank, and RankFailed on the
// others; TrainingFailed when training has diverged.
void train_preferences(TrainingRun& run);

}  // namespace ringside::rl
