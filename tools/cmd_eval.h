// `ringside eval`.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

void add_eval_command(CommandContext& context);

}  // namespace ringside::tools
