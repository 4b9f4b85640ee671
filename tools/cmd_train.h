// Command `ringside train RECIPE... --run-dir DIR [--rollouts FILE.jsonl | --prime-rl
// tcp://HOST:PORT] [--steps N] [--nproc N] [key=value ...]`: trains on recorded rollouts, on live
// ones from workers that connect, on those of prime-rl's orchestrator, or (algorithm.task=sft) on
// supervised examples. The same command on the same run directory resumes the run.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

// Adds the command. Its callback sets context.exit_code; context must outlive the parsing.
void add_train_command(CommandContext& context);

}  // namespace ringside::tools
