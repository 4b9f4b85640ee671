// Command `ringside generate --model DIR --input FILE.jsonl [--output FILE.jsonl] [key=value ...]`:
// samples one completion per prompt at eval.temperature (0 = greedy) and scores it by
// rollout.reward.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

void add_generate_command(CommandContext& context);

}  // namespace ringside::tools
