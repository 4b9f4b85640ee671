// `ringside generate --model DIR --input FILE.jsonl [--output FILE.jsonl] [key=value ...]`: one
// completion per prompt, scored by rollout.reward, sampled at eval.temperature (0 = greedy).
#pragma once

#include "tools/command.h"

namespace ringside::tools {

void add_generate_command(CommandContext& context);

}  // namespace ringside::tools
