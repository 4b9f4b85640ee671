// The files of prompts, answers, examples and recorded rollouts.
#pragma once

#include "rl/preflight/model_files.h"

namespace ringside::rl {

// data.train where workers sample here, data.eval where the trainer evaluates: every line under the
// tokenizer, every answer under the rewards of rollout.reward. Lengths are held to the model's
// positions.
void check_prompt_files(const Config& config, const PreflightScope& scope, const ModelFiles& files,
                        PreflightReport& report);

// data.sft.
void check_sft_file(const Config& config, const ModelFiles& files, PreflightReport& report);

// scope.rollouts, where it is set: ids within the vocabulary, advantages where the estimator takes
// those that come.
void check_rollout_file(const Config& config, const PreflightScope& scope, const ModelFiles& files,
                        PreflightReport& report);

}  // namespace ringside::rl
