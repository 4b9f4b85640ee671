// `ringside logprobs --model DIR --input FILE.jsonl --output FILE.jsonl [--nproc N] [key=value
// ...]`: log-probs of given token ids, at any parallel layout. Each input line {"ids": [...]}; each
// output line {"logprobs": [...]} with one value fewer, in order.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

void add_logprobs_command(CommandContext& context);

}  // namespace ringside::tools
