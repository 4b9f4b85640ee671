// Command `ringside logprobs --model DIR --input FILE.jsonl --output FILE.jsonl [--nproc N]
// [key=value ...]`: computes log-probs of given token ids, at any parallel layout. Each input line
// is {"ids": [...]}. The output line at the same place is {"logprobs": [...]} with one value fewer
// than ids.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

// Adds the command. Its callback sets context.exit_code; context must outlive the parsing.
void add_logprobs_command(CommandContext& context);

}  // namespace ringside::tools
