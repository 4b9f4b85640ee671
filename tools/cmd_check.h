// Command `ringside check [RECIPE...] [key=value ...]`: prints the resolved configuration with the
// origin of each value, explicitly set keys first, and the batch arithmetic that follows from it.
// Then it opens everything that `run` would open (rl/preflight). Starts nothing. Prints all
// mistakes; the exit code is 2 if there are any.
#pragma once

#include "tools/command.h"

namespace ringside::tools {

void add_check_command(CommandContext& context);

}  // namespace ringside::tools
