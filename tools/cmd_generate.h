// Command `ringside generate --model DIR (--input FILE | --prompt TEXT) [-n K] [--output
// FILE.jsonl] [key=value ...]`: samples K completions per prompt at eval.temperature (0 = greedy)
// and scores them by rollout.reward. Those of --prompt are printed.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

// Adds the command. Its callback sets context.exit_code; context must outlive the parsing.
void add_generate_command(CommandContext& context);

}  // namespace ringside::tools
