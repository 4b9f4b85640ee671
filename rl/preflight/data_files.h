// Checks of the files of prompts, answers, examples, pairs and recorded rollouts.
#pragma once

#include "rl/preflight/model_files.h"

namespace ringside::rl {

// Checks data.train if workers sample here, and eval_sets() if the trainer evaluates: every line
// with the tokenizer, every answer with the rewards of rollout.reward, and lengths against the
// model's positions.
void check_prompt_files(const Config& config, const PreflightScope& scope, const ModelFiles& files,
                        PreflightReport& report);

// Checks training_files() of a task that learns from documents or pairs and, if there are
// evaluations, eval_sets(): their first 256 MiB line by line with the tokenizer.
void check_document_files(const Config& config, const ModelFiles& files, PreflightReport& report);

// Checks scope.rollouts if it is set, as make_file_source() reads it: form of the lines, whole
// groups and, with a model, the rules of check_recorded().
void check_rollout_file(const Config& config, const PreflightScope& scope, const ModelFiles& files,
                        PreflightReport& report);

// Rejects prompts of data.train that leave no room for a completion in the model's positions, for a
// trainer whose workers run elsewhere. Does nothing where the files, the model or its tokenizer are
// not on this machine.
void check_train_lengths(const Config& config, const ModelFiles& files, PreflightReport& report);

}  // namespace ringside::rl
